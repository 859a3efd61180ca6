"""Converts records of episodes that another program made to air's trajectories: files `.traj` of the project
MLGym, and `traces.jsonl` of the library `verifiers`.

Fields that the other program does not record stay empty. `Start.origin` names that program. The new
trajectories can be viewed, compared and exported, but not replayed, because air cannot repeat another
program's actions.
"""

from __future__ import annotations

import ast
import hashlib
import json
import math
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from air import json_lines
from air.errors import ConfigError
from air.trajectories.recorder import Recorder

_SCORED = re.compile(r"^Evaluation Score: (\{.*\})\s*$", re.MULTILINE)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
_STRUCTURE_ERRORS = (AttributeError, IndexError, KeyError, TypeError, ValueError, RecursionError)
"""The exceptions that code of this module raises if an imported file has an unexpected structure."""
_BASELINE = re.compile(r"^Baseline Score: (\{.*\})\s*$", re.MULTILINE)


class ScoreReward(Protocol):
    """The interface of a reward for a score: the reward (`delta`), the normalised score φ (`phi`), and the
    earlier φ with which `phi` was compared (`anchor`). `air.rewards.delta.ValidateReward` has this interface.
    """

    @property
    def phi(self) -> float: ...
    @property
    def delta(self) -> float: ...
    @property
    def anchor(self) -> float: ...


@dataclass(frozen=True)
class About:
    """Facts about a task that MLGym's files do not contain, but that are needed to interpret the task's
    scores: the name of the metric, whether higher or lower is better, and the rewards for scores."""

    metric: str
    direction: Literal["higher", "lower"]
    baseline: float | None = None
    """The baseline score. None: it is read from the imported file."""
    scale: Mapping[str, Any] | None = None
    """The fields of the task's reward scale (`air.tasks.spec.RewardScale`); None if unknown."""
    pay: Callable[[float], ScoreReward] | None = None
    """A function that returns the reward for a score, as a task's reward settings define it. It is called
    with the scores of an episode in order. None: the episode gets no rewards."""


def import_mlgym(path: Path, out: Path, about: Callable[[str], About]) -> Path:
    """Converts MLGym's trajectory `path` (`<task>.traj`) to a new trajectory file in the folder `out`.
    Returns the new file's path.

    `about` is a function that takes the task's id and returns the facts about the task. The new file's name
    is computed from the contents of `path`. Raises ConfigError if `path` is not a trajectory of MLGym, and
    InfrastructureError if `out` already has a trajectory with this name or the disk is full.
    """
    data = _json(path)
    try:
        turns, history, info = data["trajectory"], data["history"], data["info"]
        graded = list(info.get("score") or ())
        first = [_content(m["content"]) for m in history if m["role"] != "assistant"][:2]
    except (KeyError, TypeError, AttributeError):
        raise ConfigError("is no trajectory of MLGym", where=str(path)) from None
    facts = about(f"mlgym:{path.stem}")
    name = hashlib.sha256(path.read_bytes()).hexdigest()[:32]
    with _new_recorder(out, name, path) as recorder:
        recorder.write(
            "start",
            t=0.0,
            episode=name,
            origin="mlgym",
            isolation="",
            task_hash="",
            task=f"mlgym:{path.stem}",
            metric=facts.metric,
            direction=facts.direction,
            baseline=_baseline(turns, facts, path),
            scale=dict(facts.scale or {}),
            system=first[0] if first else "",
            prompt=first[1] if len(first) > 1 else "",
            model=path.parent.name.split("__")[0] if "__" in path.parent.name else "unknown",
        )
        scores = _mlgym_steps(recorder, turns, graded, facts, path)
        status = str(info.get("exit_status") or "")
        # Scores are listed in the order of grading. Scores that belong to no step were given at the end.
        for metrics in graded[scores.seen :]:
            scores.write(recorder, len(turns), metrics, automatic=True)
        reward = scores.reward if facts.pay else None
        recorder.write(
            "end",
            t=0.0,
            ok=status == "submitted" or status.startswith("autosubmission"),
            why="submit" if status == "submitted" else status or "interrupted",
            reward=reward,
            terms=None if reward is None else {"delta": reward},
            metrics={"turns": float(len(turns)), "seconds_exec": scores.seconds},
        )
    return out / f"{name}.jsonl"


@dataclass
class _Scores:
    """Writes the gradings of one imported episode into its new trajectory file, and adds up their rewards.
    Also holds the total time of the episode's actions."""

    facts: About
    where: Path
    seen: int = 0
    """The number of gradings with a score that were written so far."""
    reward: float = 0.0
    """The sum of the rewards."""
    seconds: float = 0.0
    """The total time of the episode's actions in seconds."""

    def write(self, recorder: Recorder, turn: int, metrics: Any, *, automatic: bool) -> None:
        """Writes one grading as a line of the type `validate`. `turn` is the number, from 1, of the turn
        after which the grading took place. `metrics` is a dict of scores by name or, for an artefact without
        a score, the error message. `automatic` is true if the end of the episode caused the grading, and
        false if an action of the agent did."""
        if isinstance(metrics, str):
            recorder.write(
                "validate", t=0.0, turn=turn, score=None, problem=metrics, automatic=automatic
            )
            return
        score = _number(metrics, self.facts.metric, self.where)
        reward = None if self.facts.pay is None else self.facts.pay(score)
        self.seen += 1
        self.reward += reward.delta if reward else 0.0
        recorder.write(
            "validate",
            t=0.0,
            turn=turn,
            score=score,
            phi=reward.phi if reward else None,
            anchor=reward.anchor if reward else None,
            delta=reward.delta if reward else 0.0,
            metrics=_finite(metrics),
            automatic=automatic,
        )


def _mlgym_steps(
    recorder: Recorder, turns: Sequence[Any], graded: list[Any], facts: About, path: Path
) -> _Scores:
    scores = _Scores(facts, path)
    for number, turn in enumerate(turns, start=1):
        try:
            action, observation = str(turn["action"]), str(turn["observation"])
            reply, seconds = str(turn["response"]), float(turn.get("execution_time") or 0.0)
        except (KeyError, TypeError, ValueError):
            raise ConfigError(f"turn {number} is not as MLGym writes it", where=str(path)) from None
        scores.seconds += seconds
        recorder.write(
            "step",
            t=0.0,
            turn=number,
            reply=reply,
            action=action.rstrip("\n"),
            observation=observation,
            shown=observation,
            exec_seconds=seconds,
        )
        word = action.strip()
        if word == "validate":
            match = _SCORED.search(observation)
            metrics = _literal(match[1], path) if match else observation or "no score"
            scores.write(recorder, number, metrics, automatic=False)
        elif word == "submit" and scores.seen < len(graded):
            scores.write(recorder, number, graded[scores.seen], automatic=False)
    return scores


def _baseline(turns: Sequence[Any], facts: About, path: Path) -> float | None:
    if facts.baseline is not None:
        return facts.baseline
    for turn in turns:
        if match := _BASELINE.search(str(turn.get("observation", ""))):
            return _number(_literal(match[1], path), facts.metric, path)
    return None


def _literal(text: str, path: Path) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        raise ConfigError(f"a score cannot be read: {text[:80]}", where=str(path)) from None


def _number(metrics: Any, name: str, path: Path) -> float:
    try:
        by_name = {str(key).lower(): value for key, value in metrics.items()}
        value = float(by_name[name.lower()])
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError):
        raise ConfigError(
            f"has a score without {name!r}: {metrics!r:.80}", where=str(path)
        ) from None
    if not math.isfinite(value):
        raise ConfigError(f"has a score that is not finite: {metrics!r:.80}", where=str(path))
    return value


def _finite(metrics: Mapping[Any, Any]) -> dict[str, float]:
    """Returns, as floats by name, those of `metrics` that are finite numbers. Other metrics are left out."""
    numbers = {str(k): v for k, v in metrics.items() if isinstance(v, int | float)}
    return {name: float(v) for name, v in numbers.items() if abs(v) <= sys.float_info.max}


@contextmanager
def _new_recorder(out: Path, name: str, path: Path) -> Iterator[Recorder]:
    """Context manager: yields a recorder for a new trajectory file in `out`. If the block raises an
    exception, the file is deleted.

    Raises ConfigError if `name` is not a valid file name, or if the block raises an exception in
    `_STRUCTURE_ERRORS` because the imported file `path` has an unexpected structure.
    """
    if not _NAME.fullmatch(name):
        raise ConfigError(f"the id {name[:80]!r} cannot name a file", where=str(path))
    with Recorder(out, name) as recorder:
        try:
            yield recorder
        except BaseException as error:  # cancellation too: no half-written file is left
            if recorder.path is not None:
                recorder.path.unlink(missing_ok=True)
            if isinstance(error, _STRUCTURE_ERRORS):
                what = f"is not as its program writes it: {type(error).__name__}: {error}"
                raise ConfigError(what[:200], where=str(path)) from error
            raise


def import_verifiers(path: Path, out: Path) -> list[Path]:
    """Converts all traces in `verifiers`' file `traces.jsonl` to new trajectory files in the folder `out`.
    Returns their paths.

    A trace is a tree of messages. If it has several branches (paths from the root to a leaf), only the last
    one is converted. If that branch repeats earlier replies without their reasoning, the reasoning is taken
    from the original replies. A half-written last line is skipped. Raises ConfigError if the file is invalid,
    and InfrastructureError if `out` already has a trajectory of one of the traces or the disk is full.
    """
    return [_trace(trace, path, out) for trace in traces(path)]


def traces(path: Path) -> Iterator[dict[str, Any]]:
    """Yields the traces (records of conversations) in a file `traces.jsonl`, which the library `verifiers`
    wrote. Each trace is a dict, as in the file's JSON. Raises ConfigError if the file is invalid."""
    for place, row in json_lines.read(path):
        batch = row.get("traces", [row]) if isinstance(row, dict) else None
        if not isinstance(batch, list) or not all(_is_trace(one) for one in batch):
            raise ConfigError("is no episode of verifiers", where=place)
        yield from batch


def _is_trace(one: Any) -> bool:
    nodes = one.get("nodes") if isinstance(one, dict) else None
    return isinstance(nodes, list) and all(isinstance(node, dict) for node in nodes)


def _trace(trace: dict[str, Any], path: Path, out: Path) -> Path:
    name = str(trace.get("id"))
    if trace.get("id") is None:
        raise ConfigError("has a trace without an id", where=str(path))
    with _new_recorder(out, name, path) as recorder:
        _write_trace(recorder, trace, name, os.path.relpath(path, out))
    return out / f"{name}.jsonl"


def _write_trace(recorder: Recorder, trace: dict[str, Any], name: str, trace_file: str) -> None:
    nodes = trace["nodes"]
    line = _as_sampled(nodes, _last_branch(nodes))
    sampled = [at for at, n in enumerate(line) if nodes[n].get("sampled")]
    before = line[: sampled[0]] if sampled else line
    messages = [_message(nodes[n]) for n in before]
    task, agent = trace.get("task") or {}, trace.get("agent") or {}
    data = task.get("data") or {}
    rewards = {k: v for k, v in (trace.get("rewards") or {}).items() if v is not None}
    terms = {k: float(v["score"]) * float(v.get("weight", 1.0)) for k, v in rewards.items()}
    calls = {call.get("node"): call for call in trace.get("calls") or ()}
    errors = trace.get("errors") or [None]
    ok = bool(trace.get("ok"))
    start = float((trace.get("timing") or {}).get("start") or 0.0)
    recorder.write(
        "start",
        t=start,
        episode=name,
        trace=name,
        origin="verifiers",
        harness="verifiers",
        isolation="",
        task=str(data.get("task_id") or data.get("name") or data.get("id") or task.get("type")),
        task_hash=str(data.get("task_hash") or task.get("hash") or ""),
        seed=int(data.get("seed") or 0),
        versions={"verifiers": str((trace.get("verifiers") or {}).get("version", ""))},
        system="\n\n".join(text for role, text in messages if role == "system"),
        prompt="\n\n".join(text for role, text in messages if role != "system"),
        model=str((agent.get("config") or {}).get("model") or ""),
    )
    for turn, at in enumerate(sampled, start=1):
        until = sampled[turn] if turn < len(sampled) else len(line)
        observation = [_message(nodes[n])[1] for n in line[at + 1 : until]]
        _trace_step(recorder, turn, line, at, nodes, calls, "\n".join(observation))
    recorder.write(
        "end",
        t=start,
        ok=ok,
        why=str(trace.get("stop_condition") or ""),
        error=None if errors[-1] is None else f"{errors[-1]['type']}: {errors[-1]['message']}",
        reward=sum(terms.values()) if ok else None,
        terms=terms if ok else None,
        metrics=_finite(trace.get("metrics") or {}),
        trace_file=trace_file,
    )


def _trace_step(
    recorder: Recorder,
    turn: int,
    line: list[int],
    at: int,
    nodes: list[dict[str, Any]],
    calls: Mapping[Any, Any],
    observation: str,
) -> None:
    node = nodes[line[at]]
    message, call = node.get("message") or {}, calls.get(line[at]) or {}
    usage, span = call.get("usage") or {}, call.get("time") or {}
    tools = message.get("tool_calls") or []
    first = line[at]
    while at and first - 1 == line[at - 1] and not nodes[first - 1].get("sampled"):
        first, at = first - 1, at - 1
    recorder.write(
        "step",
        t=float(node.get("timestamp") or 0.0),
        turn=turn,
        reply=_content(message.get("content")),
        reasoning=_content(message.get("reasoning_content")) or None,
        action=json.dumps(tools, ensure_ascii=False) if tools else None,
        observation=None,
        shown=observation,
        model_seconds=max(0.0, float(span.get("end") or 0.0) - float(span.get("start") or 0.0)),
        tokens={
            "nodes": [first, nodes.index(node) + 1],
            "prompt": int(usage.get("prompt_tokens") or 0),
            "completion": int(usage.get("completion_tokens") or 0),
        },
    )


def _as_sampled(nodes: list[dict[str, Any]], line: list[int]) -> list[int]:
    """Returns the branch `line` of a trace (indices of nodes, from the root) with each copy of a reply
    replaced by the original node, which the model sampled. A branch has copies if later prompts leave out the
    reasoning of earlier replies: the library `verifiers` then records these replies again, as new nodes
    without reasoning."""
    written: dict[str, list[int]] = {}
    for number, node in enumerate(nodes):
        if node.get("sampled"):
            written.setdefault(_reply_key(node), []).append(number)
    result = []
    for number in line:
        same = [] if nodes[number].get("sampled") else written.get(_reply_key(nodes[number]), [])
        result.append(same.pop(0) if same and same[0] < number else number)
    return result


def _reply_key(node: dict[str, Any]) -> str:
    """Returns a string that is equal for a reply and for its copies without reasoning, so that copies can be
    found. It is made of the role, the content and the tool calls of the message in `node`."""
    message = node.get("message") or {}
    parts = [message.get("role"), _content(message.get("content")), message.get("tool_calls") or []]
    return json.dumps(parts)


def _last_branch(nodes: list[dict[str, Any]]) -> list[int]:
    """Returns the branch of a trace (a tree of messages) that ends at the last node: the indices in `nodes`
    of the messages from the root to that node. Raises ConfigError if a node names a parent that does not come
    before it."""
    line: list[int] = []
    at: int | None = len(nodes) - 1 if nodes else None
    while at is not None:
        line.append(at)
        parent = nodes[at].get("parent")
        if parent is not None and not (isinstance(parent, int) and 0 <= parent < at):
            raise ConfigError(f"node {at} of a trace has no such parent: {parent}")
        at = parent
    return line[::-1]


def _message(node: dict[str, Any]) -> tuple[str, str]:
    message = node.get("message") or {}
    return str(message.get("role")), _content(message.get("content"))


def _content(content: Any) -> str:
    """Returns the content of a chat message (a string, a list of parts, or None) as one string."""
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return "" if content is None else str(content)


def _json(path: Path) -> dict[str, Any]:
    try:
        data = json_lines.decode(path.read_text(encoding="utf-8", errors="replace"))
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", where=str(path)) from None
    except ValueError as error:
        raise ConfigError(f"not JSON: {error}", where=str(path)) from None
    if not isinstance(data, dict):
        raise ConfigError("is no trajectory of MLGym", where=str(path))
    return data
