"""Somebody's strategy in a process of its own: answers one call after the other over pipes.

It is started with the text of `codec.py` in front of this one, as another user where there is one, and
reads from standard input one line of settings, then orders: `N` calls the function with an empty list,
`A…` with the last list and one more element, `F…` with a whole list. It answers `=…` with the value,
or `!…` with what went wrong, and ends. What the strategy prints goes nowhere.
"""

import json
import os
import random
import sys
from collections.abc import Callable
from typing import Any, BinaryIO

loads: Callable[[str], Any] = globals().get("loads", json.loads)
dumps: Callable[[Any], str] = globals().get("dumps", json.dumps)


def main() -> None:
    orders, answers = os.fdopen(os.dup(0), "rb"), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    settings = json.loads(orders.readline())
    try:
        play(load(settings), orders, answers)
    except BaseException as error:  # SystemExit and the like are the strategy's failure too
        text = what(error, settings["folder"])
        os.write(answers, b"!" + text.encode("utf-8", "replace")[:500] + b"\n")
    os._exit(1)


def load(settings: Any) -> Callable[[list[Any]], Any]:
    """Imports the strategy as its module; its luck is seeded."""
    import importlib
    import resource

    resource.setrlimit(resource.RLIMIT_DATA, (settings["memory"], settings["memory"]))
    sys.dont_write_bytecode = True
    sys.path.insert(0, settings["folder"])
    random.seed(settings["seed"])
    try:
        import numpy
    except ImportError:
        pass  # an image without numpy: a strategy has no other luck than random's
    else:
        numpy.random.seed(settings["seed"])
    function = getattr(importlib.import_module(settings["module"]), settings["function"], None)
    if not callable(function):
        raise TypeError("it defines no function {}".format(settings["function"]))
    return function  # type: ignore[no-any-return]


def play(function: Callable[[list[Any]], Any], orders: BinaryIO, answers: int) -> None:
    """Answers until nobody asks any more."""
    past: list[Any] = []
    os.write(answers, b"=null\n")  # it is loaded
    for line in orders:
        order, text = line[:1], line[1:].decode()
        if order == b"A":
            past.append(loads(text))
        else:
            past = loads(text) if order == b"F" else []
        answer = dumps(function(list(past)))
        data = b"=" + answer.encode() + b"\n"
        while data:
            data = data[os.write(answers, data) :]
    os._exit(0)


def what(error: BaseException, folder: str) -> str:
    """The error as one line, with the last line of the strategy's own files that it came from."""
    here = error.__traceback__
    number = error.lineno or 0 if isinstance(error, SyntaxError) else 0
    while here is not None:
        if here.tb_frame.f_code.co_filename.startswith(folder):
            number = here.tb_lineno
        here = here.tb_next
    text = " ".join((f"{type(error).__name__}: {error}").split())
    return f"{text} (line {number})" if number else text


if __name__ == "__main__":
    main()
