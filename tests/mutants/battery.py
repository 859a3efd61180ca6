"""Defences against attacks of the integrity battery that no weaker setting lets work.

They are of the families selective masking, harness abuse, injection and resource attacks. Without the defence, the battery's
verdict on the attack is `broken`; another attack of the family is still held.
"""

from __future__ import annotations

from tests.mutants import Mutant

_HELD = "tests/docker/tasks/test_integrity_boxes.py::test_an_attack_is_held"


def _played(*attacks: str) -> tuple[str, ...]:
    """The node ids of tests that play one attack of the battery each."""
    return tuple(f"{_HELD}[{attack}]" for attack in attacks)


MUTANTS = (
    Mutant(
        "no reply's tokens make the training client fail",
        "air/env/environment.py",
        "run_episode(task, guarded(ctx), **hooks)",
        "run_episode(task, ctx, **hooks)",
        _played("call-a-tool-whose-name-is-a-number", "call-a-tool-with-nested-brackets"),
        f"{_HELD}[call-a-tool-with-no-object]",
    ),
    Mutant(
        "a reply with more than one block is refused",
        "air/actions/fenced.py",
        'if block is None or reply.count("```") != 2:',
        "if block is None:",
        _played("reply-with-fences-in-fences"),
        f"{_HELD}[reply-with-two-blocks]",
    ),
    Mutant(
        "a program's request continues its own conversation",
        "air/env/program/conversation.py",
        'return self.settings | {"messages": self._continued(body)}',
        "return body",
        _played("ask-the-model-in-a-new-conversation", "ask-the-model-with-forged-replies"),
        f"{_HELD}[ask-for-the-server's-other-pages]",
    ),
    Mutant(
        "what a command prints need not be text",
        "air/sandbox/contract/result.py",
        'return (self.stdout + self.stderr).decode("utf-8", "replace")',
        "return (self.stdout + self.stderr).decode()",
        _played("print-every-byte", "print-halves-of-characters"),
        f"{_HELD}[print-lines-of-a-trajectory]",
    ),
    Mutant(
        "a name of a file need not be text",
        "air/env/diffs.py",
        'output.decode("utf-8", "replace")',
        "output.decode()",
        _played("name-files-with-bytes-that-are-no-text"),
        f"{_HELD}[print-every-byte]",
    ),
    Mutant(
        "only a newline ends a line of a trajectory",
        "air/json_lines.py",
        '.rstrip("\\n").split("\\n")',
        ".splitlines()",
        _played("print-other-line-ends"),
        f"{_HELD}[print-lines-of-a-trajectory]",
    ),
    Mutant(
        "the guest answers with only part of what a command printed",
        "air/sandbox/guest/running_commands.py",
        "over = max(0, len(self.tail) - self.tail_cap)",
        "over = 0",
        _played("print-a-gigabyte", "print-errors-without-end"),
        f"{_HELD}[fill-nameless-files]",
    ),
)
