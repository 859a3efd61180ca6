"""Converts trajectories to ATIF-v1.7, the Agent Trajectory Interchange Format of the Harbor project.

Follows RFC 0001, "Agent Trajectory Interchange Format (ATIF) Specification", changelog v1.7, April 2026. Data
for which ATIF has no field is stored in `extra`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from air.errors import ConfigError, boundary
from air.trajectories.importers import traces
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
        fields = ("ok", "why", "error", "reward", "terms", "metrics")
        final["extra"] = end.model_dump(mode="json", include=set(fields))
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
    extra: Object = {"turn": step.turn, "code": step.code, "exec_seconds": step.exec_seconds}
    extra |= {"diff": step.diff.model_dump(mode="json")} if step.diff else {}
    extra |= {"validations": graded} if graded else {}
    result: Object = {"content": step.shown}
    if calls:
        result["source_call_id"] = calls[0]["tool_call_id"]
    if step.observation is not None and not step.shown.startswith(step.observation):
        result["extra"] = {"in_full": step.observation}
    atif_step: Object = {
        "source": "agent",
        "message": step.reply,
        "timestamp": _time(one, step.t),
        "llm_call_count": 1,
        "extra": {"air": extra},
    }
    atif_step |= {"reasoning_content": step.reasoning} if step.reasoning else {}
    atif_step |= {"tool_calls": calls} if calls else {}
    atif_step |= {"observation": {"results": [result]}} if step.shown or calls else {}
    return atif_step | {"metrics": _metrics(one, step, nodes)}


def _calls(step: Step) -> list[Object]:
    call = step.call
    if call is None:
        return [_call(step, 0, "action", {"text": step.action})] if step.action else []
    calls: list[tuple[str, Object]] = []
    if call.script:
        calls.append(("bash", {"script": call.script}))
    if call.tool is not None:
        arguments: Object = {"args": list(call.tool.args)}
        arguments |= {} if call.tool.body is None else {"body": list(call.tool.body)}
        calls.append((call.tool.name, arguments))
    if call.ending is not None:
        calls.append((call.ending, {}))
    return [_call(step, n, name, arguments) for n, (name, arguments) in enumerate(calls)]


def _call(step: Step, number: int, name: str, arguments: Object) -> Object:
    identity = f"call_{step.turn}_{number}"
    return {"tool_call_id": identity, "function_name": name, "arguments": arguments}


def _metrics(one: Trajectory, step: Step, nodes: list[Object]) -> Object:
    ref = step.tokens
    metrics: Object = {"extra": {"model_seconds": step.model_seconds}}
    if ref is None:
        return metrics
    metrics |= {"prompt_tokens": ref.prompt, "completion_tokens": ref.completion}
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
        metrics |= {"completion_token_ids": sampled, "completion_tokens": len(sampled)}
        metrics |= {"logprobs": node["logprobs"]}
    return metrics


def _nodes(one: Trajectory) -> list[Object]:
    """Returns the nodes, with their tokens, of the verifiers trace beside the trajectory."""
    where = str(one.path)
    if one.start is None or one.end is None or not one.end.trace_file:
        raise ConfigError("no trace was kept beside it", where=where)
    file = one.path.parent / one.end.trace_file
    ours = one.start.origin == "air"  # the trace of an imported trajectory lies elsewhere
    if ours and not file.resolve().is_relative_to(one.path.parent.resolve()):
        raise ConfigError("its trace is said to lie outside of the run's folder", where=where)
    for trace in traces(file):
        if trace.get("id") == one.start.trace:
            if any(node.get("token_ids") for node in trace["nodes"]):
                return list(trace["nodes"])
            raise ConfigError("its trace holds no tokens", where=str(file))
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


_FIELDS: dict[str, dict[tuple[type, ...], str]] = {
    "document": {
        (str,): "schema_version session_id trajectory_id notes continued_trajectory_ref",
        (dict,): "agent final_metrics extra",
        (list,): "steps subagent_trajectories",
    },
    "agent": {(str,): "name version model_name", (list,): "tool_definitions", (dict,): "extra"},
    "step": {
        (int,): "step_id llm_call_count",
        (str,): "timestamp source model_name reasoning_content",
        (str, float, int): "reasoning_effort",
        (str, list): "message",
        (list,): "tool_calls",
        (dict,): "observation metrics extra",
        (bool,): "is_copied_context",
    },
    "tool_call": {(str,): "tool_call_id function_name", (dict,): "arguments extra"},
    "observation": {(list,): "results"},
    "result": {
        (str,): "source_call_id",
        (str, list): "content",
        (list,): "subagent_trajectory_ref",
        (dict,): "extra",
    },
    "metrics": {
        (int,): "prompt_tokens completion_tokens cached_tokens",
        (float, int): "cost_usd",
        (list,): "prompt_token_ids completion_token_ids logprobs",
        (dict,): "extra",
    },
    "final_metrics": {
        (int,): "total_prompt_tokens total_completion_tokens total_cached_tokens total_steps",
        (float, int): "total_cost_usd",
        (dict,): "extra",
    },
}
"""The names of the fields of each kind of ATIF object, by the Python types that their values may have."""
_TYPES = {
    kind: {name: types for types, names in fields.items() for name in names.split()}
    for kind, fields in _FIELDS.items()
}
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
        if messages := [f"{rule.name}: {one}" for rule in rules for one in rule.broken(document)]:
            return messages
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
        observation = step.get("observation") if isinstance(step, dict) else None
        for m, result in enumerate(_list(observation, "results")):
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
        for name, member in value.items():
            types = _TYPES[kind].get(name)
            if types is None:
                yield f"{prefix}{name} is no field of {kind}"
            elif member is not None and not _is(member, types):
                yield f"{prefix}{name} is of the wrong type"


def _is(value: Any, types: tuple[type, ...]) -> bool:
    if isinstance(value, bool):
        return bool in types
    return isinstance(value, types)


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
            values = metrics.get(name)
            if values is not None and metrics.get(count) not in (None, len(values)):
                yield f"steps[{n}] has {len(values)} {name} and {metrics[count]} {count}"


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
