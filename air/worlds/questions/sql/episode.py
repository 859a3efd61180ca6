"""An episode with a SQL question: one question about a database, which the agent answers with one or more
queries.

The rows in the result of the agent's query must be those in the result of the gold (reference) query, in any
order. If they are, the n-th answer earns 1/2^(n-1) and ends the episode. A different result or a failing
query earns 0. An answer that contains no query earns -0.5 and ends the episode.
"""

from __future__ import annotations

import re

from air.errors import InfrastructureError
from air.tools.sql.runner import Limits, Result, run
from air.worlds.base import Observation, Step
from air.worlds.questions.episodes import Tally
from air.worlds.questions.sql.questions import Question, Questions, file_version

NO_QUERY = -0.5
_LONGEST_PROBLEM = 300
_FENCE = re.compile(r"```(?:sqlite3?|sql|postgres(?:ql)?|mysql)?(?=\s)", re.IGNORECASE)
_COMMENT = r"--[^\n]*(?:\n|\Z)|/\*(?:[^*]|\*(?!/))*+\*/"
_BEGINNING = re.compile(rf"(?:\s|\(|{_COMMENT})*+(?:select|with|values)\b", re.IGNORECASE)

INSTRUCTIONS = (
    "Answer the question about the database with one SQLite query. Its result is compared with the right "
    "one: the rows must be the same, in any order, with the columns in the order of the question. "
    "Write the query in a block:\n```sql\nSELECT ...\n```"
)


def query_of(answer: str) -> str | None:
    """Returns the query in an answer: the first fenced block of SQL or, if there is no fenced block, the
    whole answer if it begins with `SELECT`, `WITH` or `VALUES`. Returns None if the answer contains no
    query."""
    fence = _FENCE.search(answer)
    if fence is not None:
        end = answer.find("```", fence.end())
        text = answer[fence.end() : end] if end >= 0 else ""
    else:
        text = answer if _BEGINNING.match(answer) else ""
    return text.strip().rstrip("; \t\r\n") or None


def _shown(problem: str) -> str:
    """Returns a query's error message for the agent: unprintable characters are replaced and the length is
    limited, because an error message may quote any part of the query."""
    text = "".join(letter if letter.isprintable() else "?" for letter in problem[:_LONGEST_PROBLEM])
    return text if len(problem) <= _LONGEST_PROBLEM else text + "…"


class SqlEpisode:
    """An episode with one question about a database. `questions` is a function from a seed to a question. The
    agent has at most `turns` answers. `limits` apply to each query."""

    def __init__(self, questions: Questions, turns: int, limits: Limits) -> None:
        self._questions = questions
        self._turns = turns
        self._limits = limits
        self._question: Question | None = None
        self._tried: set[str] = set()
        self._tally = Tally()

    def start(self, seed: int) -> str:
        self._question = self._questions(seed)
        return f"The database:\n{self._question.schema}\n\nQuestion: {self._question.question}"

    def act(self, answer: str) -> Step:
        assert self._question is not None
        query = query_of(answer)
        if query is None:
            self._tally.count(valid=False, effective=False)
            return Step(
                Observation("There is no SQL block in your answer."), done=True, reward=NO_QUERY
            )
        result = run(self._question.database, query, self._limits)
        self._check_database(result)
        self._tally.count(valid=not result.problem, effective=query not in self._tried)
        self._tried.add(query)
        if result.fingerprint == self._question.expected:
            self._tally.success = True
            reward = 0.5 ** (self._tally.actions - 1)
            return Step(Observation("The result matches."), done=True, reward=reward)
        problem = f" SQL error: {_shown(result.problem)}." if result.problem else ""
        text = f"The result does not match.{problem}"
        return Step(Observation(text), done=self._tally.actions >= self._turns)

    def _check_database(self, result: Result) -> None:
        """Checks, after a query with the result `result`, that the user's database file is intact. Raises
        InfrastructureError if the file has changed since the episode began, or if it could not be read and
        the gold (reference) query fails now, too. Does nothing for a generated database."""
        question = self._question
        assert question is not None
        path = question.database.path
        if path is None:
            return
        problem = "" if file_version(path) == question.file_version else "another version"
        if result.unreadable and not problem:
            problem = run(question.database, question.gold, self._limits).problem
        if problem:
            raise InfrastructureError(
                f"{question.where}: {path} changed or was damaged during an episode: {problem}"
            )

    def facts(self) -> dict[str, float]:
        return self._tally.facts()
