"""The state of one running episode of a research task: an agent works in a box (a container), and its
artefact (the files that it hands in) is graded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from air.actions import Action, Standing
from air.env.diffs import Differ
from air.env.episode import Episode
from air.errors import BoxEndedError, RewardTermError
from air.rewards.normalise import phi_on
from air.rewards.terms import EpisodeFacts, reward_terms
from air.trajectories import Diff
from air.worlds.base import Step, Validation
from air.worlds.research.world import ResearchWorld


@dataclass
class ResearchEpisode(Episode):
    """The state of one running episode of a research task, in which an agent works in a box (a container) and
    its artefact (the files that it hands in) is graded."""

    world: ResearchWorld
    differ: Differ | None = None
    """Finds the changes that each turn made in the workspace. None if these changes are not recorded."""
    recorded: int = 0
    """The number of gradings that have been written to the trajectory, air's record of the episode."""

    def __post_init__(self) -> None:
        self.world.on_validated = lambda: self._note(ends=True)

    @property
    def task_id(self) -> str:
        return self.world.task.id

    @property
    def isolation(self) -> str:
        return self.world.box.isolation

    @property
    def seconds(self) -> float:
        return self.config.episode_seconds(self.world.task)

    @property
    def max_turns(self) -> int | None:
        return self.config.research_turns

    def standing(self, left: int | None) -> Standing:
        return self.world.standing(left)

    async def reset(self, seed: int) -> None:
        """Copies the task's files into the box, and adds the tools of the task's MCP (Model Context Protocol)
        servers, if it has any, to the tools that are offered to the model."""
        await self.world.reset(seed)
        if self.format:
            self.format = self.world.offered(self.format)

    async def begin(self) -> None:
        """If the settings ask for a record of the changed files, reads the files of the workspace, with which
        the files after the first turn are compared."""
        if self.format and self.recorder.path is not None and self.config.record_diffs:
            self.differ = Differ(self.world.box)
            with self.world.times.as_recording():
                await self.differ.start()

    def instructions(self) -> str:
        """Returns the part of the system prompt that explains the action format (the syntax in which the
        model writes actions) and the episode's tools."""
        assert self.format is not None
        return self.world.instructions(self.format)

    def started(self) -> dict[str, Any]:
        """Returns fields, as a dict by name, for the line that air writes at the start of an episode into its
        trajectory (the file that records the episode): those about the task, its grading and the agent's
        box."""
        world, box = self.world, self.world.box
        task = world.task
        return {
            "metric": task.metric,
            "direction": task.direction,
            "split": task.split.name,
            "baseline": task.baseline,
            "scale": task.reward_scale().model_dump(mode="json"),
            "counts": world.counts,
            "max_validates": world.max_validates,
            "told_step": world.told_step,
            "trust": task.trust,
            "image": box.spec.image,
            "image_digest": box.image_digest,
            "workspace": box.workspace,
            "temporary": box.path("/tmp"),
            "gpus": list(box.gpus),
            "box_resets": box.resets,
            "queue_seconds": round(world.times.queue, 4),
        }

    def ended(self) -> dict[str, Any]:
        """Returns `{"test": …}`, a field for the line that air writes at the end of an episode into its
        trajectory (the file that records the episode). It contains the score on the test split of the data,
        its standard error, and the digest and path of the tested artefact."""
        digest, path = self.world.test_artefact
        test = {
            "score": self.world.test_score,
            "stderr": self.world.test_stderr,
            "artefact": digest,
            "kept": path,
        }
        return {"test": test}

    async def record_step(
        self,
        reply: str,
        action: Action | None,
        step: Step | None,
        shown: str,
        **more: Any,
    ) -> None:
        """Writes one turn to the trajectory (air's record of the episode), with the changes that the turn
        made in the workspace. If the turn's action led to a grading, also writes the grading. `step` is the
        answer of the world (what the agent acts in) to the `action` in the model's `reply`, and `shown` the
        text that the model then gets; see `Episode.record_step`."""
        diff = await self._diff() if step is not None else None
        more["diff"] = None if diff is None else diff.model_dump(mode="json")
        await super().record_step(reply, action, step, shown, **more)
        if step is not None and step.validation is not None:
            self.record_validation(step.validation)

    async def _diff(self) -> Diff | None:
        if self.differ is None or self.world.box_end_reason:
            return None
        try:
            with self.world.times.as_recording():
                async with self.world.box.attributing():
                    return await self.differ.diff()
        except BoxEndedError as error:
            self.world.box_end_reason = str(error)
            return None

    def record_validation(self, validation: Validation) -> None:
        """Writes `validation`, one grading, as a line of the trajectory (air's record of the episode)."""
        self.recorder.write(
            "validate",
            turn=self.counters.turns,
            score=validation.score,
            phi=validation.phi,
            anchor=validation.anchor,
            delta=validation.delta,
            stderr=validation.stderr,
            floor=validation.floor,
            problem=validation.problem,
            fault=validation.fault,
            metrics=validation.metrics,
            artefact=validation.digest,
            kept=validation.kept,
            seconds=round(validation.seconds, 4),
            remembered=validation.remembered,
            automatic=validation.automatic,
        )
        self.recorded += 1

    def end(self) -> None:
        """Sets `why_ended`: `submit`, or `box` if the agent's commands ended the box."""
        self.why_ended = "box" if self.world.box_end_reason else "submit"

    async def finish(self) -> None:
        """Ends the episode with its last gradings, and records them. If the agent did not `submit`, its
        artefact (the files to hand in) is taken from the box and graded on the validation split. In any case,
        the artefact that counts is graded on the test split, except in tasks with their own grading rules,
        such as Harbor tasks."""
        await self.world.finish()
        for validation in self.world.validations[self.recorded :]:
            self.record_validation(validation)
        counted = self.world.counted_validate
        assert counted is not None  # there is at least the validate at the end
        self.ledger.settle(len(self.world.validations) - 1 - counted, self.rewards)

    async def abandon(self) -> None:
        """Stops what the episode's world (what the agent acts in) still does, such as a grading. If the world
        has found that the task itself is broken, stores the message about this in `user_error`."""
        await self.world.abandon()
        self.user_error = self.user_error or self.world.task_error

    @property
    def rewards(self) -> dict[str, float]:
        """The reward terms of the episode so far, by name. The reward is their sum. If a user-defined term
        fails, stores its message in `user_error` and raises RewardTermError."""
        world = self.world
        facts = EpisodeFacts(
            scale=world.task,
            scores=tuple(v.score for v in world.validations),
            phis=tuple(v.phi for v in world.validations),
            deltas=tuple(v.delta for v in world.validations),
            turns=self.counters.turns,
            format_errors=self.counters.format_errors,
            seconds=world.agent_seconds,
            limit=self.seconds,
            test_score=world.test_score,
            finished=world.finished,
        )
        try:
            return reward_terms(facts, self.config)
        except RewardTermError as error:
            self.user_error = str(error)
            raise

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics of the episode (scores, counts and times) by name. Scores that do not exist are left
        out."""
        world = self.world
        scored = [v for v in world.validations if v.score is not None]
        values = {
            "validates": float(len(world.validations)),
            "scored_validates": float(len(scored)),
            "refused_validates": float(world.refused_validates),
            "submitted": float(world.submitted),
            "valid": float(world.score is not None),
            "artefact_faults": float(sum(bool(v.fault) for v in world.validations)),
            "lost_boxes": float(bool(world.box_end_reason)),
            **self.counts(),
            "refused_requests": float(self.counters.refused_requests),
            "seconds_agent": world.times.agent,
            "seconds_exec": world.times.exec,
            "seconds_grading": world.times.grading,
            "seconds_queue": world.times.queue,
            "seconds_box": world.times.box,
            "seconds_recording": world.times.recording,
            "process_isolation": float(world.box.isolation == "process"),
        }
        last = world.validations[-1] if world.validations else None
        optional = {
            "score": world.score,
            "best_score": world.best,
            "test_score": world.test_score,
            "score_stderr": None if last is None else last.stderr,
            "test_stderr": world.test_stderr,
            "validation_test_gap": self._gap(),
        }
        return values | {name: value for name, value in optional.items() if value is not None}

    def _gap(self) -> float | None:
        """Returns the metric `validation_test_gap`: the normalised validation score φ minus the normalised
        test score of the artefact that counts in the end. Returns None if one of the two scores is
        missing."""
        world = self.world
        score = (
            None
            if world.counted_validate is None
            else world.validations[world.counted_validate].score
        )
        if score is None or world.test_score is None:
            return None
        return phi_on(world.task, score) - phi_on(world.task, world.test_score)

    def summary(self) -> dict[str, Any]:
        """Returns a summary of the episode as a dict, which the trace (`verifiers`' record) stores as
        `info["air"]`: scores, reward terms, metrics, payments (parts of the reward, with their positions in
        the conversation) and others."""
        return {
            "episode": self.id,
            "task": self.world.task.id,
            "direction": self.world.task.direction,
            "baseline": self.world.task.baseline,
            "why_ended": self.why_ended,
            "isolation": self.world.box.isolation,
            "scale": self.world.task.reward_scale().model_dump(mode="json"),
            "phis": [v.phi for v in self.world.validations],
            "scores": [v.score for v in self.world.validations],
            "deltas": [v.delta for v in self.world.validations],
            "terms": self.rewards,
            "metrics": self.metrics,
            "paid": self.ledger.payments,
            "exec_seconds": self.exec_seconds,
        }
