"""Plays the episodes of an evaluation and records them in a folder, so that an interrupted evaluation can be
continued.

The folder has `evaluation.json`, with the model and the settings of the evaluation, and `trajectories/`. Only
episodes that ended without an infrastructure error count; failed or interrupted episodes are played again.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import verifiers.v1 as vf

from air import paths
from air.env.config import AirTasksetConfig, ResearchEnvConfig
from air.errors import UsageError
from air.tasks import splits
from air.train.evaluation.episode_scores import EpisodeScores
from air.train.evaluation.play import evaluate
from air.train.evaluation.settings import Settings
from air.train.loop import run_folder
from air.train.loop.rollout import Rollout
from air.trajectories.outcome import read_outcome

FILE = "evaluation.json"
TRAJECTORIES = "trajectories"


@dataclass(frozen=True)
class Evaluation:
    """The evaluation of one model on the tasks in `settings`. Its episodes are recorded in `folder`."""

    label: str
    """The name of the model in tables."""
    model: str
    """The model: a folder, a hub id, or the name and URL of an endpoint."""
    settings: Settings
    folder: Path
    seed: str | None = None
    """Seeds the sampling of replies, together with the seed of each episode; None: replies are sampled
    without a seed."""

    def episodes(self) -> list[EpisodeScores]:
        """Returns the results of the recorded episodes that ended without an infrastructure error."""
        files = sorted((self.folder / TRAJECTORIES).glob("*.jsonl"))
        ends = [(read_outcome(path), str(path)) for path in files]
        return [EpisodeScores.of_outcome(one, where) for one, where in ends if one.how == "well"]

    def was_begun(self) -> bool:
        """Returns whether the folder has a record of an episode, which may be of a failed or interrupted
        one."""
        return any((self.folder / TRAJECTORIES).glob("*.jsonl"))

    def missing(self, episodes: int) -> dict[str, int]:
        """Returns, by task id, how many episodes must still be played until each task has `episodes` episodes
        that ended without an infrastructure error (of air or the machine)."""
        played = Counter(one.task for one in self.episodes())
        wanted = self.wanted(episodes)
        return {task: max(0, number - played[task]) for task, number in wanted.items()}

    def wanted(self, episodes: int) -> dict[str, int]:
        """Returns, by task id, how many episodes the evaluation needs in total, including recorded ones:
        `episodes` for every task. Subclasses may need other numbers."""
        tasks = [task for env in self.settings.envs for task in env.taskset.members]
        return dict.fromkeys(tasks, episodes)

    async def play(
        self,
        ctx: vf.ModelContext,
        missing: Mapping[str, int],
        fill_in_settings: Callable[[ResearchEnvConfig], ResearchEnvConfig],
    ) -> list[Rollout]:
        """Plays episodes with the model in `ctx`, records them, and returns their results. `missing` has the
        number of episodes to play, by task id. `fill_in_settings` returns a copy of an environment's settings
        in which the settings that depend on the model are filled in."""
        rollouts: list[Rollout] = []
        remaining = {task: number for task, number in missing.items() if number}
        for env in self.settings.envs:
            own = [task for task in dict.fromkeys(env.taskset.members) if task in remaining]
            if own:
                taskset = self._taskset(env.taskset, own, remaining)
                folder = self.folder / TRAJECTORIES
                now = fill_in_settings(
                    env.model_copy(update={"taskset": taskset, "record_dir": folder})
                )
                # If two environments have the same task, it is played in the first.
                each = {task: remaining.pop(task) for task in own}
                unplayed = self._unplayed(env.taskset)
                rollouts += await evaluate(now, ctx, each, keep=unplayed, seed=self.seed)
        return rollouts

    def _unplayed(self, taskset: AirTasksetConfig) -> Callable[[Any], bool]:
        """Returns a function that takes a prompt (a task object with a seed) and returns whether no recorded
        episode has its seed. The episodes that an interruption loses are those that take longest, not those
        with the highest seeds. All prompts of research tasks count as unplayed: their seed is always the
        same."""
        worlds = {*taskset.worlds}
        played = {(one.task, one.seed) for one in self.episodes() if one.task in worlds}
        return lambda prompt: (prompt.data.task_id, prompt.data.seed) not in played

    def _taskset(
        self, taskset: AirTasksetConfig, own: list[str], missing: Mapping[str, int]
    ) -> AirTasksetConfig:
        """Returns a copy of `taskset` (the settings that choose the tasks of an environment) that plays only
        the tasks `own`. `missing` has the number of episodes still to play, by task id. The copy offers
        enough seeds for all episodes of such a task, recorded or missing; `_unplayed` leaves out the recorded
        ones. No training uses these seeds."""
        changes: dict[str, Any] = {"tasks": own, "weights": {}}
        if worlds := [task for task in own if task in taskset.worlds]:
            played = Counter(one.task for one in self.episodes())
            changes |= {
                "purpose": "evaluation",
                "examples_per_task": max(played[task] + missing[task] for task in worlds),
            }
        changed: AirTasksetConfig = taskset.model_copy(update=changes)
        return changed

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Context manager that calls `open`. If the `with` block fails before an episode is recorded (for
        example, because the model cannot be loaded), removes the file `evaluation.json` if `open` has created
        it."""
        file = self.folder / FILE
        there = file.is_file()
        self.open()
        try:
            yield
        except BaseException:  # interrupts too: an empty evaluation is not left
            if not there and not (self.folder / TRAJECTORIES).exists():
                file.unlink(missing_ok=True)
            raise

    def open(self) -> None:
        """Creates the folder and `evaluation.json` if they do not exist. Raises UsageError if the folder has
        other content, belongs to an evaluation of another model or with other settings, or cannot be
        written."""
        file, text = self.folder / FILE, json.dumps(self._identity(), indent=2)
        try:
            if file.is_file():
                if _read(file) != json.loads(text):
                    raise self._other()
                return
            if run_folder.has_content(self.folder):
                raise self._other()
            paths.write_whole(file, f"{text}\n".encode())
        except OSError as error:
            raise UsageError(
                f"cannot be written: {error.strerror}",
                where=str(self.folder),
                remedy="give another --record-dir",
            ) from None

    def fits(self) -> bool:
        """Whether the evaluation can use its folder: the folder does not exist yet, is empty, or belongs to
        an evaluation of the same model with the same settings."""
        file = self.folder / FILE
        if file.is_file():
            return bool(_read(file) == self._identity())
        return not self.folder.exists() or (
            self.folder.is_dir() and not run_folder.has_content(self.folder)
        )

    def _other(self) -> UsageError:
        return UsageError(
            "has something else in it, or an evaluation of another model or with other settings",
            where=str(self.folder),
            remedy="give another --record-dir",
        )

    def _identity(self) -> dict[str, Any]:
        split = {splits.chosen(env.split_seed).name for env in self.settings.envs}
        identity = {"model": self.model, "weights": _weights(self.model), "splits": sorted(split)}
        return json.loads(json.dumps(identity | self.settings.identity()))  # type: ignore[no-any-return]


def _read(file: Path) -> Any:
    try:
        return json.loads(file.read_bytes())
    except (OSError, ValueError):
        return None


def _weights(model: str) -> list[list[Any]]:
    """Returns the name, size and modification time of each weight file of the model, to detect whether the
    weights have changed since an evaluation began. The list is empty if the model is not a local folder."""
    folder = Path(model).expanduser()
    files = sorted(folder.glob("*.safetensors")) if folder.is_dir() else []
    return [[path.name, path.stat().st_size, path.stat().st_mtime_ns] for path in files]
