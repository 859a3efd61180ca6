"""Converts trajectories to ATIF-v1.7, the Agent Trajectory Interchange Format of the Harbor project.

Follows RFC 0001, "Agent Trajectory Interchange Format (ATIF) Specification", changelog v1.7, April 2026. Data
for which ATIF has no field is stored in `extra`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from air.errors import ConfigError, boundary
from air.trajectories.trajectory import Start, Step, Trajectory

SCHEMA = "ATIF-v1.7"
Object = dict[str, Any]
_ODD = (KeyError, TypeError, ValueError)
_AGENT_ONLY = ("model_name", "reasoning_effort", "reasoning_content", "tool_calls", "metrics")


def to_atif(one: Trajectory, *, tokens: bool = False) -> Object:
    """Converts a trajectory to an ATIF document, a dictionary that can be written as JSON.

    With `tokens`, token ids and logprobs of the replies are read from the verifiers trace beside the
    trajectory. Raises ConfigError if the trajectory has no first line or an invalid time, or the trace lacks
    the tokens.
    """
    start, end = one.start, one.end
    if start is None:
        raise ConfigError("ended before it began", where=str(one.path))
    nodes = _nodes(one) if tokens else []
    steps: list[Object] = []
    for source, text in (("system", start.system), ("user", start.prompt)):
        if text:
            steps.append(
                {
                    "source": source,
                    "message": text,
                    "timestamp": _time(one, start.t),
                    "llm_call_count": 0,
                }
            )
    steps += [_step(one, step, nodes) for step in one.steps]
    numbered = [{"step_id": n, **step} for n, step in enumerate(steps, start=1)]
    refs = [step.tokens for step in one.steps if step.tokens is not None]
    final: Object = {
        "total_prompt_tokens": sum(ref.prompt for ref in refs),
        "total_completion_tokens": sum(ref.completion for ref in refs),
        "total_steps": len(numbered),
    }
    if end is not None:
        kept = ("ok", "why", "error", "reward", "terms", "metrics")
        final["extra"] = end.model_dump(mode="json", include=set(kept))
    return {
        "schema_version": SCHEMA,
        "session_id": start.trace or start.episode or one.path.stem,
        "trajectory_id": start.episode or one.path.stem,
        "agent": {
            "name": "air" if start.origin == "air" else start.origin,
            "version": start.versions.get("air-agent", "unknown"),
            "model_name": start.model,
            "extra": {"format": start.format, "settings": dict(start.settings)},
        },
        "steps": numbered,
        "final_metrics": final,
        "extra": {"air": _about(start)},
    }


def _about(start: Start) -> Object:
    left_out = {"system", "prompt", "settings", "format", "model"}
    return start.model_dump(mode="json", exclude=left_out)


def _step(one: Trajectory, step: Step, nodes: list[Object]) -> Object:
    """Converts one turn: reply, tool calls, observation, tokens and gradings."""
    calls = _calls(step)
    graded = [v.model_dump(mode="json", exclude={"t", "turn"}) for v in one.validations_of(step)]
    known: Object = {"turn": step.turn, "code": step.code, "exec_seconds": step.exec_seconds}
    known |= {"diff": step.diff.model_dump(mode="json")} if step.diff else {}
    known |= {"validations": graded} if graded else {}
    result: Object = {"content": step.shown}
    if calls:
        result["source_call_id"] = calls[0]["tool_call_id"]
    if step.observation is not None and not step.shown.startswith(step.observation):
        result["extra"] = {"in_full": step.observation}
    found: Object = {
        "source": "agent",
        "message": step.reply,
        "timestamp": _time(one, step.t),
        "llm_call_count": 1,
        "extra": {"air": known},
    }
    found |= {"tool_calls": calls} if calls else {}
    found |= {"observation": {"results": [result]}} if step.shown or calls else {}
    return found | {"metrics": _metrics(one, step, nodes)}


def _calls(step: Step) -> list[Object]:
    call = step.call
    if call is None:
        return [_call(step, 0, "action", {"text": step.action})] if step.action else []
    made: list[tuple[str, Object]] = []
    if call.script:
        made.append(("bash", {"script": call.script}))
    if call.tool is not None:
        given: Object = {"args": list(call.tool.args)}
        given |= {} if call.tool.body is None else {"body": list(call.tool.body)}
        made.append((call.tool.name, given))
    if call.ending is not None:
        made.append((call.ending, {}))
    return [_call(step, n, name, given) for n, (name, given) in enumerate(made)]


def _call(step: Step, number: int, name: str, arguments: Object) -> Object:
    identity = f"call_{step.turn}_{number}"
    return {"tool_call_id": identity, "function_name": name, "arguments": arguments}


def _metrics(one: Trajectory, step: Step, nodes: list[Object]) -> Object:
    ref = step.tokens
    found: Object = {"extra": {"model_seconds": step.model_seconds}}
    if ref is None:
        return found
    found |= {"prompt_tokens": ref.prompt, "completion_tokens": ref.completion}
    if nodes and ref.nodes is not None:
        first, end = ref.nodes
        if not 0 <= first < end <= len(nodes):
            raise ConfigError(
                f"step {step.turn} is said to be nodes {first} to {end} of a trace of {len(nodes)}",
                where=str(one.path),
            )
        node = nodes[end - 1]
        with boundary(ConfigError, f"{one.path}: step {step.turn}: odd trace", *_ODD):
            sampled = [n for n, mine in zip(node["token_ids"], node["mask"], strict=True) if mine]
        found |= {"completion_token_ids": sampled, "completion_tokens": len(sampled)}
        found |= {"logprobs": node["logprobs"]}
    return found


def _nodes(one: Trajectory) -> list[Object]:
    """Returns the nodes, with their tokens, of the verifiers trace beside the trajectory."""
    where = str(one.path)
    if one.start is None or one.end is None or not one.end.trace_file:
        raise ConfigError("no trace was kept beside it", where=where)
    file = one.path.parent / one.end.trace_file
    ours = one.start.origin == "air"  # the trace of an imported trajectory lies elsewhere
    if ours and not file.resolve().is_relative_to(one.path.parent.resolve()):
        raise ConfigError("its trace is said to lie outside of the run's folder", where=where)
    try:
        for text in file.read_text(encoding="utf-8").rstrip("\n").split("\n"):
            for trace in json.loads(text)["traces"]:
                if trace["id"] == one.start.trace:
                    if any(node["token_ids"] for node in trace["nodes"]):
                        return list(trace["nodes"])
                    raise ConfigError("its trace holds no tokens", where=str(file))
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ConfigError(f"its trace cannot be read: {error!r}", where=str(file)) from None
    raise ConfigError(f"holds no trace {one.start.trace}", where=str(file))


def _time(one: Trajectory, seconds: float) -> str:
    with boundary(
        ConfigError, f"{one.path}: no time: {seconds}", ValueError, OverflowError, OSError
    ):
        return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


@dataclass(frozen=True)
class Rule:
    """One rule of the ATIF format."""

    name: str
    says: str
    """The rule's text for people."""
    broken: Callable[[Object], Iterator[str]]
    """Yields a text for each place where a document breaks the rule."""


_FIELDS: dict[str, dict[str, tuple[type, ...]]] = {
    "document": {
        "schema_version": (str,),
        "session_id": (str,),
        "trajectory_id": (str,),
        "agent": (dict,),
        "steps": (list,),
        "notes": (str,),
        "final_metrics": (dict,),
        "continued_trajectory_ref": (str,),
        "extra": (dict,),
        "subagent_trajectories": (list,),
    },
    "agent": {
        "name": (str,),
        "version": (str,),
        "model_name": (str,),
        "tool_definitions": (list,),
        "extra": (dict,),
    },
    "step": {
        "step_id": (int,),
        "timestamp": (str,),
        "source": (str,),
        "model_name": (str,),
        "reasoning_effort": (str, float, int),
        "message": (str, list),
        "reasoning_content": (str,),
        "tool_calls": (list,),
        "observation": (dict,),
        "metrics": (dict,),
        "is_copied_context": (bool,),
        "llm_call_count": (int,),
        "extra": (dict,),
    },
    "tool_call": {
        "tool_call_id": (str,),
        "function_name": (str,),
        "arguments": (dict,),
        "extra": (dict,),
    },
    "observation": {"results": (list,)},
    "result": {
        "source_call_id": (str,),
        "content": (str, list),
        "subagent_trajectory_ref": (list,),
        "extra": (dict,),
    },
    "metrics": {
        "prompt_tokens": (int,),
        "completion_tokens": (int,),
        "cached_tokens": (int,),
        "cost_usd": (float, int),
        "prompt_token_ids": (list,),
        "completion_token_ids": (list,),
        "logprobs": (list,),
        "extra": (dict,),
    },
    "final_metrics": {
        "total_prompt_tokens": (int,),
        "total_completion_tokens": (int,),
        "total_cached_tokens": (int,),
        "total_cost_usd": (float, int),
        "total_steps": (int,),
        "extra": (dict,),
    },
}
"""The fields of each kind of ATIF object, and the Python types that each field may have."""
_REQUIRED = {
    "document": ("schema_version", "agent", "steps"),
    "agent": ("name", "version"),
    "step": ("step_id", "source", "message"),
    "tool_call": ("tool_call_id", "function_name", "arguments"),
    "observation": ("results",),
}


def problems(document: Object) -> list[str]:
    """Checks an ATIF document against `RULES` and returns a message for each violation.

    If fields are missing, unknown or of the wrong type, the other rules are not checked.
    """
    for rules in (RULES[:1], RULES[1:]):
        if found := [f"{rule.name}: {one}" for rule in rules for one in rule.broken(document)]:
            return found
    return []


def _objects(document: Object) -> Iterator[tuple[str, str, Any]]:
    """Yields every JSON object of a document as (kind, path in the document, object)."""
    yield "document", "", document
    yield "agent", "agent", document.get("agent")
    if document.get("final_metrics") is not None:
        yield "final_metrics", "final_metrics", document["final_metrics"]
    for n, step in enumerate(_list(document, "steps")):
        where = f"steps[{n}]"
        yield "step", where, step
        for m, call in enumerate(_list(step, "tool_calls")):
            yield "tool_call", f"{where}.tool_calls[{m}]", call
        for name in ("metrics", "observation"):
            if isinstance(step, dict) and step.get(name) is not None:
                yield name, f"{where}.{name}", step[name]
        seen = step.get("observation") if isinstance(step, dict) else None
        for m, result in enumerate(_list(seen, "results")):
            yield "result", f"{where}.observation.results[{m}]", result


def _list(holder: Any, name: str) -> list[Any]:
    value = holder.get(name) if isinstance(holder, Mapping) else None
    return value if isinstance(value, list) else []


def _shape(document: Object) -> Iterator[str]:
    for kind, where, value in _objects(document):
        if not isinstance(value, dict):
            yield f"{where or 'the document'} is no object"
            continue
        prefix = f"{where}." if where else ""
        for name in _REQUIRED.get(kind, ()):
            if value.get(name) is None:
                yield f"{prefix}{name} is missing"
        for name, given in value.items():
            allowed = _FIELDS[kind].get(name)
            if allowed is None:
                yield f"{prefix}{name} is no field of {kind}"
            elif given is not None and not _is(given, allowed):
                yield f"{prefix}{name} is of the wrong type"


def _is(value: Any, allowed: tuple[type, ...]) -> bool:
    if isinstance(value, bool):
        return bool in allowed
    return isinstance(value, allowed)


def _schema(document: Object) -> Iterator[str]:
    if document["schema_version"] != SCHEMA:
        yield f"is {document['schema_version']!r}"


def _steps(document: Object) -> Iterator[str]:
    if not document["steps"]:
        yield "there is no step"
    for n, step in enumerate(document["steps"]):
        if step["step_id"] != n + 1:
            yield f"steps[{n}] has step_id {step['step_id']}"


def _sources(document: Object) -> Iterator[str]:
    for n, step in enumerate(document["steps"]):
        if step["source"] not in ("system", "user", "agent"):
            yield f"steps[{n}] has source {step['source']!r}"


def _agents_fields(document: Object) -> Iterator[str]:
    for n, step in enumerate(document["steps"]):
        if step["source"] != "agent":
            yield from (f"steps[{n}].{name}" for name in _AGENT_ONLY if step.get(name) is not None)


def _timestamps(document: Object) -> Iterator[str]:
    for n, step in enumerate(document["steps"]):
        if step.get("timestamp") is not None:
            try:
                datetime.fromisoformat(step["timestamp"].replace("Z", "+00:00"))
            except ValueError:
                yield f"steps[{n}] has {step['timestamp']!r}"


def _call_ids(document: Object) -> Iterator[str]:
    for n, step in enumerate(document["steps"]):
        ids = [call["tool_call_id"] for call in step.get("tool_calls") or ()]
        yield from (
            f"steps[{n}] has {one!r} twice" for one in sorted(set(ids)) if ids.count(one) > 1
        )
        for result in (step.get("observation") or {}).get("results", ()):
            source = result.get("source_call_id")
            if source is not None and source not in ids:
                yield f"steps[{n}] answers {source!r}, which it has not called"


def _call_counts(document: Object) -> Iterator[str]:
    for n, step in enumerate(document["steps"]):
        count = step.get("llm_call_count")
        if count is not None and count < 0:
            yield f"steps[{n}] has {count}"
        if count == 0 and step["source"] == "agent" and step.get("metrics") is not None:
            yield f"steps[{n}] has metrics of no call"


def _lengths(document: Object) -> Iterator[str]:
    for n, step in enumerate(document["steps"]):
        metrics = step.get("metrics") or {}
        for name, count in (
            ("completion_token_ids", "completion_tokens"),
            ("logprobs", "completion_tokens"),
            ("prompt_token_ids", "prompt_tokens"),
        ):
            given = metrics.get(name)
            if given is not None and metrics.get(count) not in (None, len(given)):
                yield f"steps[{n}] has {len(given)} {name} and {metrics[count]} {count}"


def _subagents(document: Object) -> Iterator[str]:
    ids = [one.get("trajectory_id") for one in document.get("subagent_trajectories") or ()]
    if None in ids or len(set(ids)) < len(ids):
        yield "an embedded trajectory lacks an id of its own"
    for n, step in enumerate(document["steps"]):
        for result in (step.get("observation") or {}).get("results", ()):
            for ref in result.get("subagent_trajectory_ref") or ():
                if not ref.get("trajectory_id") and not ref.get("trajectory_path"):
                    yield f"steps[{n}] refers to a subagent that cannot be found"


RULES: tuple[Rule, ...] = (
    Rule("fields", "only known fields, of their type; required ones are there", _shape),
    Rule("schema_version", f"is {SCHEMA}", _schema),
    Rule("step_id", "steps are there and are numbered from 1 without gaps", _steps),
    Rule("source", "is system, user or agent", _sources),
    Rule("agent only", f"{', '.join(_AGENT_ONLY)} belong to agent steps", _agents_fields),
    Rule("timestamp", "is ISO 8601", _timestamps),
    Rule("tool_call_id", "is unique in a step; results answer calls of it", _call_ids),
    Rule("llm_call_count", "is 0 or more; an agent step of no call has no metrics", _call_counts),
    Rule("token counts", "token ids and logprobs are as many as counted", _lengths),
    Rule(
        "subagents", "embedded ones have ids of their own; references can be resolved", _subagents
    ),
)
"""The rules of ATIF. The other rules are checked only in a document that obeys the first rule."""
