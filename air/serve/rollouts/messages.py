"""The body of `POST /rollouts`, and the answer to it."""

from __future__ import annotations

from statistics import fmean
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

StopReason = Literal["done", "max_round", "context", "timeout", "env_error", "model_error"]


class Body(BaseModel):
    """A request: which tasks are played, and with which model."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    env: str = Field(min_length=1)
    """A task, as a run file names it, such as `agentgym:textcraft@http://HOST:PORT` or `game:sokoban6`."""
    model: str = Field(min_length=1)
    """The name of the model at its server."""
    base_url: str
    """The address of a server with OpenAI's chat completions, with or without `/v1` at its end."""
    ids: list[int] = Field(min_length=1)
    """The episodes to play, in this order. For AgentGym: ids of its tasks. For all other tasks: seeds."""
    max_round: int = Field(ge=1)
    """The number of turns of an episode."""
    n: int = Field(1, ge=1)
    """The number of episodes for each id."""
    temperature: float = Field(1.0, ge=0, allow_inf_nan=False)
    top_p: float = Field(1.0, gt=0, le=1)
    max_tokens: int = Field(512, ge=1)
    """The largest number of tokens of a reply."""
    seed: int = 0
    """The seed of the model's sampling. The seed of each episode's sampling is computed from it."""
    timeout: float = Field(600.0, gt=0, allow_inf_nan=False)
    """The time limit of an episode in seconds."""
    action_format: str | None = None
    """An action format of air. None: the task's own, which is a form of ReAct for AgentGym."""

    @field_validator("ids")
    @classmethod
    def _not_negative(cls, ids: list[int]) -> list[int]:
        if any(not 0 <= each < 10**12 for each in ids):
            raise ValueError("ids are numbers from 0 on")
        return ids

    @field_validator("base_url")
    @classmethod
    def _with_version(cls, url: str) -> str:
        if not url.startswith(("http://", "https://")):
            raise ValueError("write an address such as http://127.0.0.1:8000")
        url = url.rstrip("/")
        return url if url.endswith("/v1") else f"{url}/v1"


class Played(BaseModel):
    """One episode. `score` and `raw_score` are null if air, the environment's server or the model failed."""

    id: int
    sample: int
    """The number of this episode, from 0, among the `n` episodes for the same entry of `ids`."""
    score: float | None
    """The task's score: from 0 to 1 in AgentGym and in tasks with a scale, else the world's reward."""
    raw_score: float | None
    """The number from which `score` is computed: AgentGym's own score, or a research task's metric."""
    success: bool | None
    done: bool
    """Whether the task ended the episode. False if a limit ended it."""
    rounds: int
    stop_reason: StopReason
    error: str | None
    conversation: list[dict[str, Any]]
    """The messages in the form of AgentGym's trajectories, with the keys `from`, `loss` and `value`."""
    rewards: list[float]
    """The world's reward for each action, or the delta of each validate."""


class Answer(BaseModel):
    """The answer: the episodes in the order of `ids`, and means over those that have a score."""

    env: str
    rollouts: list[Played]
    mean_score: float | None
    success_rate: float | None


def answer(env: str, played: list[Played]) -> Answer:
    """Returns the answer to a request. Without any score, the means are null."""
    scores = [one.score for one in played if one.score is not None]
    successes = [float(one.success) for one in played if one.success is not None]
    return Answer(
        env=env,
        rollouts=played,
        mean_score=fmean(scores) if scores else None,
        success_rate=fmean(successes) if successes else None,
    )
