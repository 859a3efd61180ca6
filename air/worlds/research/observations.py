"""Writes the observations (the texts that an agent sees) of research tasks: the task, the result of an
action, and a score."""

from __future__ import annotations

from air.sandbox.contract.box import ExecResult
from air.tasks.spec import TaskSpec
from air.worlds.base import Observation, Validation
from air.worlds.research.score_rounding import score_text

NONE_LEFT = "[not scored] no validate is left in this episode; its end is scored in any case"
"""The observation for the action `validate` (a request to grade the work so far) if the agent has used up the
number of such requests that are graded in the episode."""
OVER = "[the episode has ended]"
"""The observation for an action after the end of the episode."""
BOX_ENDED = "[the box has ended]"
"""The observation if the agent's commands have ended its box, the isolated place in which they run. It is
also the message of the ArtefactError, because the artefact in the box can no longer be read."""


def describe(task: TaskSpec) -> str:
    """Returns the first observation of an episode as text: the task's description, metric, baseline score and
    artefact (the files to be graded). For a task with `rules` of its own (`TaskSpec.rules`), such as a Harbor
    task, the observation is only the instruction of the task's first stage (step, in Harbor's words)."""
    if task.rules is not None:
        return task.rules.instruction(0)
    return (
        f"{task.name}: {task.description.strip()}\n"
        f"Score: {task.metric}, {task.direction} is better; baseline {task.baseline:.4g}. "
        f"Artefact: {', '.join(task.artefacts)}."
    )


def after_action(
    answer: Observation | None, result: ExecResult | None, score: str, seconds: float
) -> str:
    """Returns the observation after an action. It consists of the tool's result (`answer`; None without a
    tool call), the script's output and exit status (`result`; None without a script), and the text `score`
    (empty without a grading). `seconds` is the script's time limit."""
    parts = [] if answer is None else [answer.text]
    if result is not None:
        if text := result.text.strip("\n"):
            parts.append(text)
        if result.timed_out:
            parts.append(f"[timed out after {seconds:g} s]")
        elif result.code != 0:
            parts.append(f"[exit {result.code}]")
    if score:
        parts.append(score)
    return "\n".join(parts) or "[done]"


def score_line(
    task: TaskSpec, validation: Validation, best: float | None, step: float, *, baseline: bool
) -> str:
    """Returns the line that tells the agent the result of a grading: the score and `best`, the best score so
    far, rounded to multiples of `step`; or the problem, if there is no score. With `baseline`, the line also
    contains the task's baseline score."""
    if validation.score is None or best is None:
        return f"[not scored] {validation.problem}"
    first = f", baseline {score_text(task.baseline, step)}" if baseline else ""
    error = "" if validation.stderr is None else f" ± {score_text(validation.stderr, step)}"
    score = f"{score_text(validation.score, step)}{error} (best {score_text(best, step)}{first})"
    return f"[{task.metric}] {score}"
