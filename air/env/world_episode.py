"""The state of one running episode in a world (what an agent acts in) that is not a research task, such as a
game or a question with tools. The agent may have a box, a container for its commands.

The reward has these terms:

    world        the sum of the rewards that the world gave for the agent's actions
    unanswered   min(0, u − min(0, world)) if the episode ended but no action ended it, else 0
    format       −(the task's `format_penalty` + the settings' `format_penalty`) · number of format errors
    time         −`time_penalty` of the settings · min(1, seconds / limit)

The number u ≤ 0 is the task's setting `unanswered`. If no action ended the episode (because turns or time ran
out) and `world` is negative, the sum of `world` and `unanswered` is the lower of u and `world`. If `world` is
not negative, the sum is `world` + u.

With the setting `credit = "segment"`, every action with a nonzero reward ends a segment, a part of the
episode that is trained on by itself. An action that ends the agent's box also ends the episode. This action
gets, as its reward, the amount that the term `unanswered` would otherwise have. So this amount is part of the
term `world` and of the segment of this action, and clients of `air serve` get it with the action's result.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any

from air.actions import Action, Standing
from air.aio import wait_shielded
from air.env.config import AirHarnessConfig
from air.env.episode import Episode
from air.env.observation_truncation import counter_for
from air.errors import BoxEndedError, InfrastructureError, UserCodeError
from air.machine_failures import is_machine_failure
from air.sandbox.contract.box import Box
from air.tasks.spec import RewardScale
from air.worlds.base import Observation, Step, World, without_end
from air.worlds.sources import WorldTask

_LOG = logging.getLogger("verifiers.v1.air.worlds")
TURN_LIMIT: ContextVar[int | None] = ContextVar("turn_limit", default=None)
"""The maximum number of turns of the episodes that begin in this context (see `contextvars`). It replaces the
limits that the tasks set. None: the limit in the settings applies or, if there is none, the task's own."""
CLOSE_SECONDS = 60.0
"""The time limit, in seconds, for closing a world (what an agent acts in) at the end of an episode. If
closing takes longer, the episode still counts, with the rewards and facts (numbers about it) that it had
before."""
_REMEDY = (
    "what an agent can cause must be an observation, and any other failure an InfrastructureError"
)
BOX_ENDED = "[the box has ended]"
"""The observation for the agent after its commands have ended its box."""


@dataclass
class WatchedWorld:
    """Wraps a world, what an agent acts in, and has the same methods. Checks and records its rewards,
    recognises when the agent's commands ended the box (its container), and does not raise errors of the
    world's `close`, but stores their message."""

    world: World[Action]
    unanswered: float = 0.0
    """The task's setting `unanswered` (see `air.worlds.sources.WorldTask`), at most 0: what an episode earns
    at its end if no action ended it. If the sum of the earlier rewards is negative, the episode's total is
    the lower of this amount and that sum (see the formula of the module)."""
    box: Box | None = None
    """The box in which the agent acts; None if the world has none."""
    box_seconds: float = 0.0
    """The number of seconds for which the episode waited for its box."""
    box_end_reason: str = ""
    """A description of how the agent's commands ended the box; empty if they did not."""
    ended: bool = False
    """Whether an action has ended the episode."""
    user_error: str = ""
    """The message of a UserCodeError (code of the user failed, such as an answer checker), which must stop
    the run; empty if there was none."""
    rewards: list[float] = field(default_factory=list)
    """The reward of each action, in order."""
    seconds: float = 0.0
    """The total seconds that the world took to perform the agent's actions."""
    close_error: str = ""
    """The error message of a failed `close`; empty if it did not fail."""
    _closing: asyncio.Future[dict[str, Any]] | None = None

    async def reset(self, seed: int) -> Observation:
        """Starts an episode with the seed `seed`, and returns the first observation. Raises UserCodeError if
        a tool of the user hangs, and InfrastructureError for any other failure."""
        with self._noting():
            return _sendable(await self.world.reset(seed))

    async def step(self, action: Action) -> Step:
        """Performs an action and returns its result. If the action ends the agent's box, the result ends the
        episode, with the reward `end_reward`.

        An exception that proves a failure of the machine (see `is_machine_failure`) is raised unchanged. Any
        other exception comes from the world's code, or from an answer checker or tool of the user, and
        is raised as UserCodeError, which stops the run. If such a failure only excluded the episode from
        training, an agent could escape bad rewards by actions that cause it.
        """
        began = time.monotonic()
        with self._noting():
            try:
                step = await self._step(action)
            except Exception as error:  # a user's world may raise anything
                if isinstance(error, UserCodeError) or is_machine_failure(error):
                    raise
                problem = f"the world failed at an action: {type(error).__name__}: {error}"
                raise UserCodeError(problem, remedy=_REMEDY) from error
            if not math.isfinite(step.reward):
                raise UserCodeError(f"the world gave the reward {step.reward}", remedy=_REMEDY)
        seconds = time.monotonic() - began
        self.seconds += seconds
        self.ended = self.ended or step.done
        self.rewards.append(float(step.reward))
        return replace(
            step,
            observation=_sendable(step.observation),
            exec_seconds=step.exec_seconds or seconds,
        )

    @contextmanager
    def _noting(self) -> Iterator[None]:
        """Context manager: if the block raises UserCodeError, stores its message in `user_error`."""
        try:
            yield
        except UserCodeError as error:
            self.user_error = str(error)
            raise

    async def _step(self, action: Action) -> Step:
        if self.box is None:
            return await self.world.step(action)
        if self.box_end_reason:
            return Step(Observation(BOX_ENDED), done=True, reward=self.end_reward)
        try:
            async with self.box.attributing():
                return await self.world.step(action)
        except BoxEndedError as error:
            self.box_end_reason = str(error)
            return Step(Observation(BOX_ENDED), done=True, reward=self.end_reward)

    @property
    def end_reward(self) -> float:
        """The reward that is added if the episode ends now because turns or time ran out, or because the
        agent's box ended. Computed from the setting `unanswered` and the rewards so far; 0 if an action has
        already ended the episode."""
        return 0.0 if self.ended else without_end(self.unanswered, self.rewards)

    async def close(self) -> dict[str, Any]:
        """Closes the world, and returns what its `close` returns. Closes it only once, even if the caller is
        cancelled meanwhile. If closing fails, returns {} and stores the error's message in `close_error`,
        because the episode's rewards are final already; that of a UserCodeError also in `user_error`."""
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close())
        return await wait_shielded(self._closing)

    async def _close(self) -> dict[str, Any]:
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                return await self.world.close()
        except UserCodeError as error:  # stops the run, and the episode's rewards stay
            self.user_error = self.close_error = str(error)
            return {}
        except (InfrastructureError, BoxEndedError, TimeoutError) as error:
            if self.box_end_reason:  # nothing is left that could end
                return {}
            self.close_error = f"{type(error).__name__}: {error}"
            _LOG.warning("a world failed to end: %s", self.close_error)
            return {}

    def facts(self) -> Mapping[str, float]:
        """Returns the world's facts: numbers about the episode, by name. Raises UserCodeError if one of them
        is not finite."""
        facts = {name: float(value) for name, value in self.world.facts().items()}
        with self._noting():
            for name, value in facts.items():
                if not math.isfinite(value):
                    raise UserCodeError(f"the world's fact {name} is {value}", remedy=_REMEDY)
        return facts


def _sendable(observation: Observation) -> Observation:
    """Returns the observation with lone surrogates (halves of Unicode characters) replaced, because no model
    server accepts them. A world may repeat them from an action of the agent."""
    text = observation.text.encode("utf-8", "replace").decode()
    return observation if text == observation.text else replace(observation, text=text)


@dataclass
class WorldEpisode(Episode):
    """The state of one running episode in a world that is not a research task, such as a game or a question
    with tools."""

    world: WatchedWorld
    task: WorldTask = field(kw_only=True)
    turn_limit: int | None = field(default_factory=TURN_LIMIT.get)
    """The maximum number of turns, which replaces the limit that the task sets. The settings can lower it
    further. None: the limit in the settings applies or, if there is none, the task's own."""
    first: Observation = field(default_factory=lambda: Observation(""))
    """The first observation as the model sees it; empty before `reset`."""
    began: float = field(default_factory=time.monotonic)
    used: float | None = None
    """The agent's time in seconds; None until the episode ends."""
    facts: Mapping[str, float] = field(default_factory=dict)
    """The world's facts at the end of the episode: numbers about it, by name, such as `success`. Empty before
    the end."""

    @property
    def task_id(self) -> str:
        return self.task.id

    @property
    def isolation(self) -> str:
        return "none" if self.world.box is None else self.world.box.isolation

    @property
    def seconds(self) -> float:
        return self.config.limit_of(self.task.seconds)

    @property
    def max_turns(self) -> int | None:
        turns: int | None = self.config.agent.max_turns
        limit = self.turn_limit or self.task.max_turns
        if turns is None:
            return limit
        return turns if self.turn_limit is None else min(turns, limit)

    def standing(self, left: int | None) -> Standing:
        return Standing(left=None if self.task.opening else left)

    async def reset(self, seed: int) -> None:
        """Starts the world (what the agent acts in) with the seed `seed`. Shortens its first observation
        (text for the model) if it is too long, and stores it in `first`."""
        harness = self.config.agent.harness or AirHarnessConfig()
        tokens = await asyncio.to_thread(counter_for, harness.tokenizer)
        first = await self.world.reset(seed)
        text, cut = await asyncio.to_thread(tokens.cap, first.text, harness.max_observation_tokens)
        self.first = Observation(text, truncated=cut or first.truncated)
        self.counters.cut_observations += self.first.truncated
        self.began = time.monotonic()

    def prompt(self, text: str) -> str:
        """Returns the user prompt before the first reply: the task's text `text`, the first observation, and
        the opening text of the action format (syntax of actions). Leaves out `text` if the task has an
        `opening`, two messages that `messages` puts before the prompt."""
        text = "" if self.task.opening else text
        return super().prompt("\n\n".join(part for part in (text, self.first.text) if part))

    def instructions(self) -> str:
        assert self.format is not None
        return "" if self.task.opening else self.format.instructions

    def messages(self, system: str | None, prompt: str) -> list[dict[str, Any]]:
        first, user = super().messages(system, prompt)
        if self.task.opening is None:
            return [first, user]
        said, reply = self.task.opening
        opening = [{"role": "user", "content": said}, {"role": "assistant", "content": reply}]
        return [*([first] if first["content"] else []), *opening, user]

    def started(self) -> dict[str, Any]:
        """Returns fields, as a dict by name, for the line that air writes at the start of an episode into its
        trajectory (the file that records the episode): those about the world (what the agent acts in) and the
        agent's box."""
        return {
            "opening": self.task.opening,
            "metric": self.metric,
            "direction": "higher",
            "baseline": 0.0,
            "scale": self.scale.model_dump(mode="json"),
            "world": {
                "replays": self.task.replays,
                "format_penalty": self.task.format_penalty,
                "facts": dict(self.task.facts),
                "first": self.first.text,
            },
            **self._of_box(),
        }

    def _of_box(self) -> dict[str, Any]:
        box = self.world.box
        if box is None:
            return {}
        return {
            "image": box.spec.image,
            "image_digest": box.image_digest,
            "workspace": box.workspace,
            "temporary": box.path("/tmp"),
            "box_resets": box.resets,
            "queue_seconds": round(box.queue_seconds, 4),
        }

    def ended(self) -> dict[str, Any]:
        return {"facts": dict(self.facts), "close_error": self.world.close_error}

    async def record_step(
        self, reply: str, action: Action | None, step: Step | None, shown: str, **more: Any
    ) -> None:
        """Writes one turn to the trajectory (air's record of the episode), with the reward of the world (what
        the agent acts in) for its action. `step` is the world's answer to the `action` in the model's
        `reply`, and `shown` the text that the model then gets; see `Episode.record_step`."""
        more |= {} if step is None else {"reward": float(step.reward), "done": step.done}
        await super().record_step(reply, action, step, shown, **more)
        if step is not None and step.reward:
            self._note(ends=True)

    @property
    def metric(self) -> str:
        """The name of the episode's score in tables: `success` if the world reports a number of this name,
        otherwise `reward`."""
        return "success" if "success" in self.task.facts else "reward"

    @property
    def score(self) -> float:
        """The episode's score: the number `success` if the world reports it, otherwise the sum of the reward
        terms `world` and `unanswered`."""
        return (
            self.facts.get("success", 0.0)
            if self.metric == "success"
            else self.rewards["world"] + self.rewards["unanswered"]
        )

    @property
    def scale(self) -> RewardScale:
        """The settings for normalising the episode's score. They leave the score as it is (a score `success`
        is limited to 0 to 1), because only research tasks have a baseline and a target score."""
        clip = (0.0, 1.0) if self.metric == "success" else (-1e9, 1e9)
        return RewardScale(
            direction="higher", baseline=0.0, target=1.0, normalise="none", phi_clip=clip
        )

    def end(self) -> None:
        """Sets `why_ended`: `done` if the world (what the agent acts in) ended the episode, or `box` if the
        agent's commands ended the box."""
        self.why_ended = "box" if self.world.box_end_reason else "done"

    async def finish(self) -> None:
        """Stores the facts of the world (numbers about the episode), then closes the world."""
        if self.used is None:
            self.used = time.monotonic() - self.began
            self.facts = self.world.facts()
            await self.world.close()
        self._note(ends=False)

    async def abandon(self) -> None:
        """Ends an episode, also a failed one: closes the world, even if the caller is cancelled meanwhile,
        and copies the world's `user_error` to this object."""
        try:
            await self.world.close()
        finally:
            self.user_error = self.world.user_error

    @property
    def rewards(self) -> dict[str, float]:
        penalty = self.task.format_penalty + self.config.format_penalty
        used = time.monotonic() - self.began if self.used is None else self.used
        return {
            "world": math.fsum(self.world.rewards),
            "unanswered": 0.0 if self.used is None else self.world.end_reward,
            "format": 0.0 - penalty * self.counters.format_errors,
            "time": 0.0 - self.config.time_penalty * min(1.0, used / self.seconds),
        }

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics of the episode by name: the world's facts (numbers such as `success`), and the counts
        and times that all episodes have."""
        return {
            **self.facts,
            **({} if self.used is None else {"score": self.score}),
            **self.counts(),
            "close_errors": float(bool(self.world.close_error)),
            "seconds_agent": self.used or 0.0,
            "seconds_exec": self.world.seconds,
            **self._box_metrics(),
        }

    def _box_metrics(self) -> dict[str, float]:
        box = self.world.box
        if box is None:
            return {}
        return {
            "lost_boxes": float(bool(self.world.box_end_reason)),
            "seconds_queue": box.queue_seconds,
            "seconds_box": self.world.box_seconds,
            "process_isolation": float(box.isolation == "process"),
        }

    def summary(self) -> dict[str, Any]:
        return {
            "episode": self.id,
            "task": self.task.id,
            "why_ended": self.why_ended,
            "isolation": self.isolation,
            "direction": "higher",
            "baseline": 0.0,
            "scale": self.scale.model_dump(mode="json"),
            "facts": dict(self.facts),
            "rewards": list(self.world.rewards),
            "scores": [self.score],
            "phis": [self.score],
            "terms": self.rewards,
            "metrics": self.metrics,
            "paid": self.ledger.payments,
            "exec_seconds": self.exec_seconds,
        }
