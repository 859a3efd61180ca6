"""Loads the tasks with arithmetic word problems: `gsm8k` (one answer per episode) and `gsm8k5` (up to five
answers)."""

from __future__ import annotations

import functools

from air.rewards.answers import integers
from air.worlds.questions.arithmetic.episode import INSTRUCTIONS, WRONG, ArithmeticEpisode
from air.worlds.questions.arithmetic.players import perfect
from air.worlds.questions.arithmetic.problems import LEVELS, Problems, from_files, generated
from air.worlds.questions.episodes import (
    FACTS,
    EpisodeWorld,
    Name,
    answering,
    digest,
    source_digest,
)
from air.worlds.sources import WorldTask

TURNS = {"gsm8k": 1, "gsm8k5": 5}
"""The maximum number of answers in an episode, by the kind of task, such as `gsm8k5`."""
FILES = "a JSONL file of GSM8K's rows, or a folder with train.jsonl and test.jsonl,"
__all__ = ["FILES", "LEVELS", "TURNS", "load", "problems_of"]


def problems_of(name: Name) -> tuple[Problems, str]:
    """Returns two values for the task with the parsed task id `name`: a function from a seed to a problem,
    and a string that identifies the set of problems (a digest of the user's files, or the level)."""
    if name.path is not None:
        return from_files(name.path)
    return generated(name.level), f"level {name.level}"


def load(name: Name) -> WorldTask:
    """Returns the task with the parsed task id `name`. Raises MissingError or ConfigError if the user's data
    are absent or malformed."""
    problems, data = problems_of(name)
    turns = TURNS[name.kind]
    again = "" if turns == 1 else f" You have up to {turns} answers; a wrong one costs a little."
    return WorldTask(
        id=name.task_id,
        make=lambda: EpisodeWorld(functools.partial(ArithmeticEpisode, problems, turns)),
        instructions=INSTRUCTIONS + again,
        digest=digest(source_digest(__file__, integers.__file__), turns, data),
        replays=True,
        max_turns=turns,
        names_turns=turns > 1,
        format_penalty=0.1,
        unanswered=WRONG,
        facts=FACTS,
        player=lambda world, seed: answering(perfect(problems, seed)),
    )
