"""The bodies of requests to `POST /rollouts`, which plays episodes of air's tasks with a model, and of the
responses."""

from __future__ import annotations

from statistics import fmean
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from air.config import is_server

StopReason = Literal["done", "max_round", "context", "timeout", "env_error", "model_error"]


class RolloutsRequest(BaseModel):
    """The body of `POST /rollouts`, a request to play episodes: which task is played, with which random seeds
    (or, in an AgentGym environment, which of its numbered tasks), and with which model."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    env: str = Field(min_length=1)
    """The id of a task, as in the files that configure trainings (run files), such as
    `agentgym:textcraft@http://HOST:PORT` or `game:sokoban6`."""
    model: str = Field(min_length=1)
    """The model's name at the server with the URL `base_url`."""
    base_url: str
    """The URL of the server that runs the model. It must have OpenAI's chat completions API. `/v1` at the end
    of the URL may be omitted."""
    ids: list[int] = Field(min_length=1)
    """The episodes to play, as numbers from 0 to 10¹² − 1. For an AgentGym environment, they are the numbers
    of its tasks; otherwise, they are random seeds for the task."""
    max_round: int = Field(ge=1)
    """The maximum number of turns (replies of the model) in an episode."""
    n: int = Field(1, ge=1)
    """The number of episodes that are played for each entry of `ids`."""
    temperature: float = Field(1.0, ge=0, allow_inf_nan=False)
    top_p: float = Field(1.0, gt=0, le=1)
    max_tokens: int = Field(512, ge=1)
    """The maximum number of tokens in a reply."""
    seed: int = 0
    """A random seed. The seeds for sampling the model's replies in each episode are derived from it."""
    timeout: float = Field(600.0, gt=0, allow_inf_nan=False)
    """The time limit of each episode in seconds."""
    action_format: str | None = None
    """The name of an action format of air, the syntax in which the model writes its actions. None: the task's
    own action format. In an AgentGym environment, `react` also means the environment's own format."""

    @field_validator("ids")
    @classmethod
    def _not_negative(cls, ids: list[int]) -> list[int]:
        if any(not 0 <= each < 10**12 for each in ids):
            raise ValueError("ids are numbers from 0 on")
        return ids

    @field_validator("base_url")
    @classmethod
    def _with_version(cls, url: str) -> str:
        if not is_server(url):
            raise ValueError(
                "not the URL of a server: write an address such as http://127.0.0.1:8000"
            )
        url = url.rstrip("/")
        return url if url.endswith("/v1") else f"{url}/v1"


class EpisodeResult(BaseModel):
    """The result of one episode. `score`, `raw_score` and `success` are null if air, the environment's server
    or the model failed."""

    id: int
    sample: int
    """The position of this episode (from 0) among the `n` episodes that were played for the same entry of
    `ids`."""
    score: float | None
    """The episode's score. In AgentGym: the environment's own score, from 0 to 1. In a research task (the
    agent develops a result that is graded, perhaps several times): the best of its scores, normalised so that
    0 is the baseline and 1 the target. In other tasks: the score that the task reports, or the sum of the
    rewards if it reports none."""
    raw_score: float | None
    """A score that is not normalised. In AgentGym: the last score that the environment's server sent. In a
    research task: the metric of the last grading that succeeded; null if none succeeded. In other tasks: the
    sum of the rewards."""
    success: bool | None
    done: bool
    """Whether the task or the agent itself ended the episode. False if a limit or a failure ended it."""
    rounds: int
    stop_reason: StopReason
    error: str | None
    conversation: list[dict[str, Any]]
    """The chat messages in the form of AgentGym's trajectories: each has the keys `from`, `value` (its text)
    and `loss` (for an assistant's message: whether the model wrote it in this episode; otherwise null)."""
    rewards: list[float]
    """The rewards in order: one for each grading in a research task, one for each action in other tasks.
    Empty if air, the environment's server or the model failed."""


class RolloutsResponse(BaseModel):
    """The response to `POST /rollouts`: the results of the episodes, in the order of `ids`, and the means of
    `score` and `success` over the episodes that have a score."""

    env: str
    rollouts: list[EpisodeResult]
    mean_score: float | None
    success_rate: float | None


def response(env: str, results: list[EpisodeResult]) -> RolloutsResponse:
    """Builds the response to `POST /rollouts` from the episodes' results; `env` is the task's id in the
    request. The means are null if no episode has a score."""
    scores = [one.score for one in results if one.score is not None]
    successes = [float(one.success) for one in results if one.success is not None]
    return RolloutsResponse(
        env=env,
        rollouts=results,
        mean_score=fmean(scores) if scores else None,
        success_rate=fmean(successes) if successes else None,
    )
