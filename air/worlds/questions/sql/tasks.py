"""Loads the tasks with SQL questions: `sql` (one answer per episode) and `sql5` (up to five answers)."""

from __future__ import annotations

import functools

from air.tools.sql import runner
from air.tools.sql.runner import Limits
from air.worlds.questions.episodes import (
    FACTS,
    BlockingEpisodeWorld,
    Name,
    answering,
    digest,
    source_digest,
)
from air.worlds.questions.sql import bird
from air.worlds.questions.sql.episode import INSTRUCTIONS, NO_QUERY, SqlEpisode
from air.worlds.questions.sql.players import perfect
from air.worlds.questions.sql.questions import LEVELS, Questions, generated
from air.worlds.questions.threads import threads
from air.worlds.sources import WorldTask

TURNS = {"sql": 1, "sql5": 5}
"""The maximum number of answers in an episode, by the kind of task, such as `sql5`."""
FILES = "BIRD's folder, with dev.json and dev_databases,"
__all__ = ["FILES", "LEVELS", "TURNS", "load", "questions_of"]


def questions_of(name: Name) -> tuple[Questions, str, Limits]:
    """Returns three values for the task with the parsed task id `name`: a function from a seed to a question,
    a string that identifies the set of questions (a digest of the user's data, or the level), and the limits
    of one query."""
    if name.path is not None:
        return (*bird.from_folder(name.path), bird.LIMITS)
    return generated(name.level), f"level {name.level}", Limits()


def load(name: Name) -> WorldTask:
    """Returns the task with the parsed task id `name`. Raises MissingError or ConfigError if the user's data
    are absent or malformed."""
    questions, data, limits = questions_of(name)
    turns = TURNS[name.kind]
    again = "" if turns == 1 else f" You have up to {turns} answers; a later one earns less."
    episode = functools.partial(SqlEpisode, questions, turns, limits)
    return WorldTask(
        id=name.task_id,
        make=lambda: BlockingEpisodeWorld(episode, threads),
        instructions=INSTRUCTIONS + again,
        digest=digest(source_digest(__file__), source_digest(runner.__file__), turns, data),
        replays=name.path is None,
        max_turns=turns,
        names_turns=turns > 1,
        format_penalty=0.1,
        unanswered=NO_QUERY,
        seconds=600.0 if name.path is None else 3600.0,
        facts=FACTS,
        player=lambda world, seed: answering(perfect(questions, seed)),
    )
