"""Counts the failed episodes of a training run, and stops a run in which too many episodes fail."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from air.env.environment import ResearchEnv
from air.errors import InfrastructureError
from air.train.loop.rollout import Source


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
        """Whether the run has played at least one episode, and every episode so far has failed."""
        return 0 < self._played == self._reasons.total()

    def commonest(self) -> str:
        """Returns a phrase for the user with the most frequent reason of all failures so far, such as `the
        commonest failure (3 of 5): REASON`. At least one episode must have failed."""
        return _commonest(self._reasons)

    def check_steps(self, most: int, how_to_resume: Callable[[], str]) -> None:
        """Raises InfrastructureError if all episodes of at least `most` consecutive steps, up to now, failed.
        `how_to_resume` returns the end of the error message, which says how to resume the run."""
        if self.steps >= most:
            raise InfrastructureError(
                f"no episode of the last {self.steps} steps ended well; {self.commonest()} — fix this, "
                f"then {how_to_resume()}"
            )

    def check_run(self) -> None:
        """Raises InfrastructureError if the run played episodes and all of them failed."""
        if self.everything:
            raise InfrastructureError(
                f"no episode ended well, so nothing was learnt; {self.commonest()} — fix this, "
                "then start again with another --run.name"
            )


async def check_breakers(sources: Sequence[Source], how_to_resume: Callable[[], str]) -> None:
    """Raises InfrastructureError if an environment of `sources` has decided that the run must stop, as it
    does after too many consecutive infrastructure errors (of air or the machine, not of the agent), or after
    an error in code that the user added. `how_to_resume` returns the end of the error message, which says how
    to resume the run."""
    for source in sources:
        if isinstance(source.env, ResearchEnv):
            try:
                await source.env.check_breaker()
            except InfrastructureError as error:
                raise InfrastructureError(f"{error} — fix this, then {how_to_resume()}") from error


def _commonest(reasons: Counter[str]) -> str:
    ((reason, count),) = reasons.most_common(1)
    return f"the commonest failure ({count} of {reasons.total()}): {reason}"
