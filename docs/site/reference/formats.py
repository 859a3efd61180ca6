"""The pages of file formats: the lines of a trajectory, and the files of a task."""

from __future__ import annotations

import inspect

from air.tasks.check import Solvers
from air.tasks.spec import TaskSpec
from air.trajectories import VERSION, trained_tokens
from air.trajectories import schema as model

from .markdown import Section, page
from .models import model_section, sections

LINES: dict[str, type[model.Line]] = {
    "start": model.Start,
    "step": model.Step,
    "validate": model.Validation,
    "end": model.End,
}
"""The type of every line and its model."""
PARTS = (model.Call, model.ToolUse, model.TokenRef, model.Diff, model.FileChange, model.Test)


def trajectory_page() -> str:
    """The page of the trajectory's lines."""
    lines = [model_section(kind, f'Lines with `"type": "{name}"`') for name, kind in LINES.items()]
    parts = [model_section(kind, f"`{kind.__name__}`") for kind in PARTS]
    return (
        page(
            "Trajectory format",
            f"""One episode is one file, `trajectories/<episode>.jsonl`. Each line is a JSON object:
`{{"v": {VERSION}, "type": …, "t": …}}` and the fields below. `v` is the version of the format, `t` the time
in seconds since the epoch. The first line has the type `start`, the last one `end`. A line is written as
soon as it happened.

A reader must ignore fields that it does not know. air reads version 1 too: there, `observation` of a step is
what the model was shown, and `call`, `shown`, `diff`, `tokens` and the settings of the run are absent.
`air.trajectories.load(path)` reads a file of either version into the types below.""",
            [("Lines", lines), ("Parts of lines", parts)],
            columns=("field", "type", "default", "meaning"),
        )
        + tokens_section()
    )


def tokens_section() -> str:
    """The section on the tokens of a step: the docstring of the module that writes and reads them."""
    return f"\n## Tokens of a training step\n\n{inspect.getdoc(trained_tokens)}\n"


def task_page() -> str:
    """The page of a task's files."""
    return page(
        "Files of a task",
        """Every key of `task.toml` and `solvers.toml`. [Tasks](../tasks.md) says how to make a task. A key
outside this list is an error.""",
        [("`task.toml`", task_file()), ("`solvers.toml`", solvers_file())],
        columns=("key", "type", "default", "meaning"),
    )


def line_sections() -> list[Section]:
    """A section for every model of the trajectory: lines and parts of lines."""
    return [
        model_section(kind, kind.__name__)
        for kind in vars(model).values()
        if inspect.isclass(kind) and issubclass(kind, model.Line) and kind is not model.Line
    ]


def task_file() -> list[Section]:
    """The keys of `task.toml`."""
    return list(sections(TaskSpec, "", title="Top level"))


def solvers_file() -> list[Section]:
    """The keys of `solvers.toml`."""
    return list(sections(Solvers, "", title="Recorded solvers"))
