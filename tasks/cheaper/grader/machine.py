"""A small machine whose programs cost one for every instruction that is carried out.

A program is text, one instruction a line; `#` begins a comment; `name:` is a label and costs nothing.
R is a register (a word in small letters), A and B are registers or whole numbers:

    set R A      add R A      sub R A      mul R A
    load R A     R becomes memory[A]
    store A B    memory[A] becomes B
    jump NAME    goes on at the label
    less A B NAME, same A B NAME    goes on at the label if A < B, if A = B
    halt         ends; so does running past the last line

Memory has 256 cells. In the beginning memory[0] is the count n, memory[1..n] are the numbers, all else
is 0, and no register has a value. In the end memory[0] is the answer. Numbers beyond ±2**31 are a fault.
"""

import re

CELLS, LARGEST, MOST_LINES, MOST_STEPS = 256, 2**31, 400, 100_000
FORMS = {
    "set": "RA",
    "add": "RA",
    "sub": "RA",
    "mul": "RA",
    "load": "RA",
    "store": "AA",
    "jump": "L",
    "less": "AAL",
    "same": "AAL",
    "halt": "",
}
WORD, NUMBER = re.compile(r"[a-z_]{1,30}"), re.compile(r"-?[0-9]{1,10}")


class BadProgram(Exception):
    """The program is none, or made a fault when it ran; the text is shown to its author."""


def parse(text):
    """The program as (line number, instruction, operands); a label becomes a place in that list.

    Raises:
        BadProgram: a line is no instruction, or there are more than MOST_LINES of them.
    """
    lines, labels = [], {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if len(words) == 1 and words[0].endswith(":") and WORD.fullmatch(words[0][:-1]):
            if words[0][:-1] in labels:
                raise BadProgram(f"line {number}: the label {words[0]} is there twice")
            labels[words[0][:-1]] = len(lines)
        elif words:
            lines.append((number, words))
    if len(lines) > MOST_LINES:
        raise BadProgram(f"{len(lines)} instructions, at most {MOST_LINES}")
    return [(number, words[0], _operands(number, words, labels)) for number, words in lines]


def _operands(number, words, labels):
    form = FORMS.get(words[0])
    if form is None:
        raise BadProgram(f"line {number}: unknown instruction {words[0][:20]!r}")
    if len(words) != len(form) + 1:
        raise BadProgram(f"line {number}: {words[0]} takes {len(form)} operands")
    operands = []
    for kind, word in zip(form, words[1:], strict=True):
        if kind == "L":
            if word not in labels:
                raise BadProgram(f"line {number}: there is no label {word[:30]!r}")
            operands.append(labels[word])
        elif kind == "A" and NUMBER.fullmatch(word):
            operands.append(int(word))
        elif WORD.fullmatch(word):
            operands.append(word)
        else:
            raise BadProgram(f"line {number}: {word[:30]!r} is no operand of {words[0]}")
    return operands


def run(code, numbers):
    """The answer to the numbers, and what it cost.

    Raises:
        BadProgram: a fault, or more than MOST_STEPS instructions.
    """
    memory = [len(numbers), *numbers] + [0] * (CELLS - 1 - len(numbers))
    registers = {}
    at = cost = 0
    while at < len(code):
        number, name, operands = code[at]
        if cost == MOST_STEPS:
            raise BadProgram(f"more than {MOST_STEPS} instructions were carried out")
        cost += 1
        at += 1
        try:
            if name == "halt":
                break
            if name == "jump":
                at = operands[0]
                continue
            wanted = operands[1:2] if name in ("set", "load") else operands[:2]
            values = [registers[x] if isinstance(x, str) else x for x in wanted]
            if name in ("less", "same"):
                if values[0] < values[1] if name == "less" else values[0] == values[1]:
                    at = operands[2]
                continue
            _change(name, operands[0], values, registers, memory)
        except KeyError as error:
            raise BadProgram(f"line {number}: the register {error.args[0]} has no value") from None
        except IndexError:
            raise BadProgram(f"line {number}: there is no such cell of memory") from None
        except OverflowError:
            raise BadProgram(f"line {number}: a number beyond ±2**31") from None
    return memory[0], cost


def _change(name, target, values, registers, memory):
    value = values[-1]
    if name in ("load", "store"):
        cell = values[0]
        if not 0 <= cell < CELLS:
            raise IndexError
        if name == "load":
            value = memory[cell]
    elif name == "add":
        value = values[0] + value
    elif name == "sub":
        value = values[0] - value
    elif name == "mul":
        value = values[0] * value
    if not -LARGEST <= value <= LARGEST:
        raise OverflowError
    if name == "store":
        memory[cell] = value
    else:
        registers[target] = value
