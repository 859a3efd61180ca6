"""Runs the trainings and evaluations of a matrix, and skips those that are already finished. A matrix is a
table of results: one model is trained for each row (a list of tasks), and evaluated on the task of each
column."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from air.aio import cancelled_by_signals
from air.errors import UsageError
from air.train.evaluation.local_model import loaded
from air.train.evaluation.resumable_evaluation import Evaluation
from air.train.loop import run_folder
from air.train.matrix.plan import Plan, TrainedRow
from air.train.matrix.training import OpenTrainingLog, train


class MatrixRun:
    """Runs those trainings and evaluations of a matrix that are not finished. A matrix is a table of results:
    a model is trained for each row (a list of tasks), and plays the task of each column. `say` prints a line
    for the user. `logged` returns a context manager in which the log lines of a training go to a file in the
    training's folder. `on_cells` is called each time after the model of one row and seed has played the tasks
    of all columns."""

    def __init__(
        self,
        plan: Plan,
        say: Callable[[str], None],
        logged: OpenTrainingLog,
        on_cells: Callable[[], None] = lambda: None,
    ) -> None:
        self._plan, self._say, self._logged, self._on_cells = plan, say, logged, on_cells
        self.failures: list[str] = []
        """The errors of failed episodes. When the command `air matrix` is repeated, these episodes are played
        again."""

    async def run(self) -> None:
        """Trains a model for each row (a list of training tasks) and each seed, and lets it play the tasks of
        all columns. The untrained row `base`, if the matrix has it, is first. Raises the errors that
        `EmbeddedRun.run` raises for a training. After SIGINT or SIGTERM, raises CancelledError; finished work
        is kept."""
        for number, trained in enumerate(self._plan.trained, 1):
            place = f"[{number}/{len(self._plan.trained)}] {trained}"
            model = await self._model(trained, place)
            with cancelled_by_signals(self._stop_again):  # a training does this itself
                await self._play(trained, model, place)
            self._on_cells()

    def _stop_again(self) -> None:
        self._say("already stopping: the boxes and the server of the model are being closed")

    async def _model(self, trained: TrainedRow, place: str) -> str:
        """Returns the folder or Hugging Face id of the model for `trained`, a row of the matrix with one
        seed. Trains the model first if its training is not finished. `place` is the title of the progress
        display."""
        if trained.seed is None:
            return self._plan.start
        return str(await train(trained.config, place, self._say, self._logged))

    async def _play(self, trained: TrainedRow, model: str, place: str) -> None:
        """Loads `model`, the model of a row and seed (a folder or Hugging Face id), and lets it play those
        episodes on the tasks of all columns that are not recorded yet. `place` is the beginning of each line
        for the user. Raises UsageError if the folder of an evaluation has episodes with other weights or
        settings."""
        config = self._plan.config
        cells = [self._plan.evaluation(trained, model, column) for column in config.columns]
        todo: list[tuple[Evaluation, dict[str, int]]] = []
        for cell in cells:
            if not cell.fits():
                raise UsageError(
                    "has episodes of other weights, or with other settings",
                    where=str(cell.folder),
                    remedy="remove this folder to play the cell anew",
                )
            cell.open()
            missing = cell.missing(config.evaluation.episodes)
            if any(missing.values()):
                todo.append((cell, missing))
        if not todo:
            self._say(f"{place}: all {len(cells)} cells are played")
            return
        settings = [cell.settings for cell, _ in todo]
        async with loaded(model, settings[0]) as served:
            for cell, missing in todo:
                ((column, count),) = missing.items()
                self._say(f"{place}: plays {column} ({count} episodes)")
                with run_folder.locked(cell.folder):
                    rollouts = await cell.play(served.ctx, missing, served.fill_in_settings)
                self._note([rollout.error for rollout in rollouts if not rollout.ok])

    def _note(self, errors: Sequence[str]) -> None:
        self.failures += errors
        if errors:
            self._say(f"{len(errors)} episodes failed: {errors[0]}")
