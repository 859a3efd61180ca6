"""Prints the output of `air shell`, as readable text or as one JSON object per line.

Control characters in the output of a box (an agent's sandbox) are replaced by escapes, so that they cannot
act on the terminal.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from air.cli.output import safe
from air.errors import AirError, UsageError


class Screen:
    """Prints the output of `air shell` to standard output. Also stores the printed text, in which the method
    `expect` searches.

    If `as_json` is true, each printed line is a JSON object. Objects about turns, gradings and the end of the
    episode have the keys of the corresponding lines in a trajectory file (recorded episode).
    """

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._printed: list[str] = []

    def tell(
        self, kind: str, text: str, *, line: Mapping[str, Any] | None = None, **more: Any
    ) -> None:
        """Prints text that comes from a box (an agent's sandbox), or that a model would see.

        In JSON mode, prints an object with the key `type`, whose value is `kind`, and with the keys of
        `line`. If `line` is None, the other keys are `text` and those of `more`.
        """
        self._printed.append(text)
        self._print(kind, safe(text), {"text": text, **more} if line is None else line)

    def note(
        self, kind: str, text: str, *, line: Mapping[str, Any] | None = None, **more: Any
    ) -> None:
        """Prints a message from `air shell` itself. In text mode, the message begins with `# `. In JSON mode,
        prints an object with the key `type`, whose value is `kind`, and with the keys of `line`; if `line` is
        None, the other keys are `text` and those of `more`."""
        self._printed.append(text)
        self._print(kind, safe(f"# {text}"), {"text": text, **more} if line is None else line)

    def line(self, line: Mapping[str, Any], terms: Mapping[str, float]) -> None:
        """Prints a line of the trajectory (recorded episode): a turn, a grading or the end of the episode. In
        text mode, a grading is followed by the reward so far; `terms` has the parts of this reward by
        name."""
        kind = line["type"]
        if kind == "step":
            self.tell(kind, line["shown"], line=line)
            if line.get("reward") is not None:
                self.note("reward", f"reward of the step {line['reward']:+z.4f}", line=line)
            return
        if kind == "validate":
            self.note(kind, _graded(line), line=line)
            if not self._as_json:
                self.reward(terms)
        else:
            self.note(kind, _ended(line), line=line)

    def reward(self, terms: Mapping[str, float]) -> None:
        """Prints the parts of the reward, `terms` (by name), and their sum, which is the reward."""
        self.note("reward", _reward(terms), reward=sum(terms.values()), terms=dict(terms))

    def diff(self, diff: Mapping[str, Any] | None) -> None:
        """Prints the changes that a turn made to the workspace. `diff` has the fields of
        `air.trajectories.Diff`; it is None if the turn contained no valid action."""
        if diff is None:
            self.note("diff", "the step ran no action, so no changes are recorded")
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
        """Deletes the stored output, so that `expect` searches only later output."""
        self._printed.clear()

    def expect(self, text: str) -> None:
        """Raises AirError if `text` is not in the output since the last call of `forget`, and UsageError if
        `text` is empty."""
        if not text:
            raise UsageError("needs a text", where=":expect")
        printed = "\n".join(self._printed)
        if text not in printed:
            raise AirError(f"expected {text!r} in {printed[-400:]!r}")

    def _print(self, kind: str, text: str, data: Mapping[str, Any]) -> None:
        if self._as_json:
            text = json.dumps({"type": kind, **data})
        print(text, flush=True)


def _reward(terms: Mapping[str, float]) -> str:
    parts = ", ".join(f"{name} {value:+z.4f}" for name, value in terms.items())
    return f"reward {sum(terms.values()):+z.4f} = {parts}"


def _graded(line: Mapping[str, Any]) -> str:
    how = "graded at the end" if line["automatic"] else "graded"
    if line["score"] is None:
        return f"{how}: {line['problem']}; delta {line['delta']:+z.4f}"
    error = "" if line["stderr"] is None else f" ± {line['stderr']:.4f}"
    floor = f", moves below {line['floor']:.4f} earn nothing" if line["floor"] else ""
    return (
        f"{how}: score {line['score']:.4f}{error}, φ {line['phi']:+z.4f}; delta {line['delta']:+z.4f} "
        f"over φ {line['anchor']:+z.4f}{floor}"
    )


def _ended(line: Mapping[str, Any]) -> str:
    if "test" not in line:
        facts = ", ".join(f"{name} {value:g}" for name, value in line["facts"].items())
        return f"the episode is over ({line['why']}); {_reward(line['terms'])}; {facts}"
    test = line["test"]["score"]
    score = "not scored" if test is None else f"{test:.4f}"
    return f"the episode is over ({line['why']}); {_reward(line['terms'])}; test split: {score}"
