"""Counts the failed episodes of a training run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence


class Failures:
    """Counts the failed episodes of a run by reason, which is the first line of the episode's error."""

    def __init__(self) -> None:
        self.steps = 0
        """The number of consecutive steps, up to now, in which every episode failed."""
        self._reasons: Counter[str] = Counter()
        self._played = 0

    def count(self, step: int, played: int, errors: Sequence[str]) -> str:
        """Adds the failures of training step `step` to the counts. `played` is the number of the step's
        episodes, and `errors` has the error text of each failed episode. Returns one line for the user about
        the failures, or an empty string if there are none."""
        reasons = Counter(
            (error.splitlines() or [""])[0].removesuffix(".")[:200] for error in errors
        )
        self._reasons += reasons
        self._played += played
        self.steps = self.steps + 1 if len(errors) == played else 0
        if not errors:
            return ""
        return f"step {step}: {len(errors)} of {played} episodes failed; {_commonest(reasons)}"

    @property
    def everything(self) -> bool:
        """Whether the run has played episodes and all of them failed."""
        return 0 < self._played == self._reasons.total()

    def commonest(self) -> str:
        """Returns a phrase with the most frequent reason and its count. At least one episode must have
        failed."""
        return _commonest(self._reasons)


def _commonest(reasons: Counter[str]) -> str:
    ((reason, count),) = reasons.most_common(1)
    return f"the commonest failure ({count} of {reasons.total()}): {reason}"
