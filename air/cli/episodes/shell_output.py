"""What `air shell` prints: text for people, or one JSON object a line.

What comes out of a box is data: no character of it reaches the terminal that the terminal would obey.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from air.errors import AirError, UsageError


def safe(text: str) -> str:
    """`text` with what a terminal would obey spelled out; line breaks and tabs stay."""
    return "".join(c if c.isprintable() or c in "\n\t" else repr(c)[1:-1] for c in text)


class Screen:
    """Prints to standard output.

    Args:
        as_json: whether one JSON object a line, a trajectory's lines as they are recorded.
    """

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._said: list[str] = []

    def tell(
        self, kind: str, text: str, *, line: Mapping[str, Any] | None = None, **more: Any
    ) -> None:
        """Text out of a box, or for the model."""
        self._said.append(text)
        self._print(kind, safe(text), {"text": text, **more} if line is None else line)

    def note(
        self, kind: str, text: str, *, line: Mapping[str, Any] | None = None, **more: Any
    ) -> None:
        """A line of the shell's own."""
        self._said.append(text)
        self._print(kind, safe(f"# {text}"), {"text": text, **more} if line is None else line)

    def line(self, line: Mapping[str, Any], terms: Mapping[str, float]) -> None:
        """A line of the record, as it was written."""
        kind = line["type"]
        if kind == "step":
            self.tell(kind, line["shown"], line=line)
            return
        if kind == "validate":
            self.note(kind, _graded(line), line=line)
            if not self._as_json:
                self.reward(terms)
        else:
            self.note(kind, _ended(line), line=line)

    def reward(self, terms: Mapping[str, float]) -> None:
        """The reward and what it is the sum of."""
        self.note("reward", _reward(terms), reward=sum(terms.values()), terms=dict(terms))

    def diff(self, diff: Mapping[str, Any] | None) -> None:
        """What a step changed."""
        if diff is None:
            self.note("diff", "nothing was done, so nothing is recorded")
            return
        notes = [f"# {f['path']}: {f['status']}, {f['note']}" for f in diff["files"] if f["note"]]
        notes += [f"# {diff['problem']}"] if diff["problem"] else []
        text = "\n".join([diff["text"].rstrip("\n"), *notes]).strip("\n")
        self.tell(
            "diff",
            text or "# no file was changed",
            **{k: v for k, v in diff.items() if k != "text"},
        )

    def forget(self) -> None:
        """What is printed from now on is what `expect` looks at."""
        self._said.clear()

    def expect(self, wanted: str) -> None:
        """Fails unless what was printed since `forget` holds `wanted`.

        Raises:
            UsageError: `wanted` is empty, which everything holds.
            AirError: it does not.
        """
        if not wanted:
            raise UsageError("names no text", where=":expect")
        said = "\n".join(self._said)
        if wanted not in said:
            raise AirError(f"expected {wanted!r} in {said[-400:]!r}")

    def _print(self, kind: str, text: str, data: Mapping[str, Any]) -> None:
        if self._as_json:
            text = json.dumps({"type": kind, **data})
        print(text, flush=True)


def _reward(terms: Mapping[str, float]) -> str:
    parts = ", ".join(f"{name} {value:+.4f}" for name, value in terms.items())
    return f"reward {sum(terms.values()):+.4f} = {parts}"


def _graded(line: Mapping[str, Any]) -> str:
    how = "graded at the end" if line["automatic"] else "graded"
    if line["score"] is None:
        return f"{how}: {line['problem']}; delta {line['delta']:+.4f}"
    error = "" if line["stderr"] is None else f" ± {line['stderr']:.4f}"
    floor = f", moves below {line['floor']:.4f} earn nothing" if line["floor"] else ""
    return (
        f"{how}: score {line['score']:.4f}{error}, φ {line['phi']:+.4f}; delta {line['delta']:+.4f} "
        f"over φ {line['anchor']:+.4f}{floor}"
    )


def _ended(line: Mapping[str, Any]) -> str:
    test = line["test"]["score"]
    scored = "not scored" if test is None else f"{test:.4f}"
    return f"the episode is over ({line['why']}); {_reward(line['terms'])}; test split: {scored}"
