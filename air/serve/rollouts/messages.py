"""The request and response bodies of `POST /rollouts`."""

from __future__ import annotations

from statistics import fmean
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from air.config import is_server

StopReason = Literal["done", "max_round", "context", "timeout", "env_error", "model_error"]


class RolloutsRequest(BaseModel):
    """The request body: which task is played, with which seeds or numbers, and with which model."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    env: str = Field(min_length=1)
    """The id of a task, in the form that run files use, such as `agentgym:textcraft@http://HOST:PORT` or
    `game:sokoban6`."""
    model: str = Field(min_length=1)
    """The model's name at the server `base_url`."""
    base_url: str
    """The URL of a server with OpenAI's chat completions API, with or without `/v1` at its end."""
    ids: list[int] = Field(min_length=1)
    """The episodes to play, as numbers from 0 to 10¹² − 1. For AgentGym, they are the numbers of its tasks;
    for all other tasks, the seeds."""
    max_round: int = Field(ge=1)
    """The maximum number of turns in an episode."""
    n: int = Field(1, ge=1)
    """The number of episodes that are played for each entry of `ids`."""
    temperature: float = Field(1.0, ge=0, allow_inf_nan=False)
    top_p: float = Field(1.0, gt=0, le=1)
    max_tokens: int = Field(512, ge=1)
    """The maximum number of tokens in a reply."""
    seed: int = 0
    """The seed from which each episode derives its own seed for the model's sampling."""
    timeout: float = Field(600.0, gt=0, allow_inf_nan=False)
    """The time limit of an episode in seconds."""
    action_format: str | None = None
    """The name of an action format of air. None: the task's own action format. For AgentGym, `react` is the
    environment's own, too."""

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
    """The result of one episode. `score` and `raw_score` are null if air, the environment's server or the
    model failed."""

    id: int
    sample: int
    """The number of this episode (from 0) among the `n` episodes of the same entry of `ids`."""
    score: float | None
    """The episode's score. In AgentGym: the environment's own score, from 0 to 1. In a research task: the
    best normalised score φ of its validates. In other worlds: the score that the world reports, or else the
    sum of its rewards."""
    raw_score: float | None
    """A score that is not normalised. In AgentGym: the score that the environment's server sent last. In a
    research task: the metric at the last validate that has one; null if no validate has one. In other worlds:
    the sum of the rewards."""
    success: bool | None
    done: bool
    """Whether the task or the agent ended the episode. False if a limit or a failure ended it."""
    rounds: int
    stop_reason: StopReason
    error: str | None
    conversation: list[dict[str, Any]]
    """The chat messages in the form of AgentGym's trajectories, with the keys `from`, `loss` and `value`."""
    rewards: list[float]
    """The rewards in order: one for each action in a world, or for each validate of a research task. Empty if
    air, the environment's server or the model failed."""


class RolloutsResponse(BaseModel):
    """The response of `POST /rollouts`: the episodes in the order of `ids`, and the means over those episodes
    that have a score."""

    env: str
    rollouts: list[EpisodeResult]
    mean_score: float | None
    success_rate: float | None


def response(env: str, results: list[EpisodeResult]) -> RolloutsResponse:
    """Builds the response to a request. The means are null if no episode has a score."""
    scores = [one.score for one in results if one.score is not None]
    successes = [float(one.success) for one in results if one.success is not None]
    return RolloutsResponse(
        env=env,
        rollouts=results,
        mean_score=fmean(scores) if scores else None,
        success_rate=fmean(successes) if successes else None,
    )
