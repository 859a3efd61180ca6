"""Plays demonstration episodes of the quickstart tasks (small practice tasks), in which a script writes the
agent's replies instead of a model.

A policy is first trained on such episodes by supervised learning (a warm start), then by reinforcement
learning. In each quickstart task, the agent must choose two numbers from 1 to 4: it writes `method=M level=L`
into the file `config`, and runs the program `solve.py`, which makes the file that is graded. The script
prefers good choices only weakly, so that reinforcement learning can still improve the policy.
"""

from __future__ import annotations

import itertools
import random
import re
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import verifiers.v1 as vf

from air.actions import Action, get
from air.errors import InfrastructureError
from air.testing import Message, Script, ScriptedServer
from air.train.evaluation.play import evaluate
from air.train.evaluation.settings import research_env
from air.train.loop.rollout import Rollout

Choice = tuple[int, int]
_CHOICE = re.compile(r"method=(\d) level=(\d)")
_SCORE = re.compile(r"^\[(\w+)\] (-?[\d.]+)", re.MULTILINE)


class ScriptedAgent:
    """A script that writes an agent's replies, with random choices of mixed quality.

    A choice is a pair (method, level), two numbers that the agent writes into the task's file `config`. In
    each turn, the script makes a random choice or, with probability `experienced`, takes one of the task's
    four best choices so far (once at least eight choices of the task have scores). A turn ends with `submit`
    with probability `stop` (`stop / 4` if the episode has no score yet), otherwise with `validate`; the last
    turn always submits. With probability `careful`, a turn that submits takes the episode's best choice
    instead of a new one.
    """

    def __init__(
        self, seed: int, *, experienced: float = 0.3, careful: float = 0.3, stop: float = 0.4
    ) -> None:
        self._rng = random.Random(seed)
        self._lock = threading.Lock()
        self._experienced, self._careful, self._stop = experienced, careful, stop
        self._known: dict[str, dict[Choice, float]] = {}

    def __call__(self, conversation: Sequence[Message]) -> str:
        """Returns the agent's next reply in a conversation. Remembers the scores that the conversation shows,
        so that later replies, in any episode, can take the task's best choices."""
        seen = _scored_choices(conversation)
        turns = _turns_left(conversation)
        task = str(conversation[1]["content"]).split(maxsplit=1)[0]
        with self._lock:
            known = self._known.setdefault(task, {})
            known.update(seen)
            fresh = self._choose(known)
            stop = self._stop if seen else self._stop / 4
            last = turns == 1 or self._rng.random() < stop
            careful = self._rng.random() < self._careful
        if last and careful and seen:
            best = max(seen, key=lambda pair: pair[1])[0]
            return _reply(task, "back to", best, "submit")
        return _reply(task, "try", fresh, "submit" if last else "validate")

    def _choose(self, known: dict[Choice, float]) -> Choice:
        if len(known) >= 8 and self._rng.random() < self._experienced:
            return self._rng.choice(sorted(known, key=lambda choice: -known[choice])[:4])
        return (self._rng.randint(1, 4), self._rng.randint(1, 4))


async def demonstrate(
    tasks: Sequence[str],
    episodes: int,
    record_dir: Path,
    *,
    seed: int = 0,
    runtime: str = "docker",
    agent: Script | None = None,
) -> list[Rollout]:
    """Plays `episodes` demonstration episodes of each task, and records their trajectories in `record_dir`.
    `runtime` says where the agents' commands run: `docker` in containers, `subprocess` in processes without a
    container. `agent` writes the replies; None: a `ScriptedAgent` with the seed `seed`. Returns the episodes.
    Raises InfrastructureError if more than one in ten episodes ended with an infrastructure error."""
    env = research_env(tasks, runtime=runtime, max_turns=4, record_dir=record_dir)
    with ScriptedServer(agent or ScriptedAgent(seed)) as server:
        client = vf.EvalClientConfig(base_url=server.url, api_key_var="AIR_SCRIPTED_KEY")
        played = await evaluate(env, vf.ModelContext(model="scripted", client=client), episodes)
    failed = [r for r in played if not r.ok]
    if len(failed) * 10 > len(played):
        raise InfrastructureError(
            f"{len(failed)} of {len(played)} demonstrations failed: {failed[0].error}"
        )
    return played


def _reply(task: str, word: str, choice: Choice, ending: Any) -> str:
    method, level = choice
    script = f'echo "method={method} level={level}" > config\npython3 solve.py'
    return get("fenced").render(
        f"{task}: {word} method {method} level {level}.", Action(script, ending)
    )


def _scored_choices(conversation: Sequence[Message]) -> list[tuple[Choice, float]]:
    """Returns a pair (choice, score) for each of the agent's replies in the conversation whose choice
    (method, level) got a score. In these tasks, a higher score is better."""
    scored = []
    for reply, observation in itertools.pairwise(conversation):
        if reply["role"] != "assistant":
            continue
        choice, score = _CHOICE.search(reply["content"]), _SCORE.search(observation["content"])
        if choice and score:
            scored.append(((int(choice[1]), int(choice[2])), float(score[2])))
    return scored


def _turns_left(conversation: Sequence[Message]) -> int | None:
    counts = re.findall(r"\[(\d+) turns left\]", str(conversation[-1]["content"]))
    return int(counts[-1]) if counts else None
