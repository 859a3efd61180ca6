"""The rules that a document in ATIF, the Agent Trajectory Interchange Format of the project Harbor, must
satisfy, and `problems`, a function that checks a document. It does not need Harbor's packages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

VERSIONS = ("1.4", "1.5", "1.6", "1.7", "1.8")
"""The versions of ATIF (Agent Trajectory Interchange Format) that air can write and check, oldest first."""
NEWEST = VERSIONS[-1]
_PREFIX = "ATIF-v"
SINCE: dict[str, dict[str, str]] = {
    "document": {"trajectory_id": "1.7", "subagent_trajectories": "1.7"},
    "agent": {"tool_definitions": "1.5"},
    "step": {"is_copied_context": "1.5", "llm_call_count": "1.7"},
    "tool_call": {"extra": "1.7"},
    "result": {"extra": "1.7"},
}
"""The version of ATIF (Agent Trajectory Interchange Format) that introduced a field, by kind of object, then
by field name. Fields that already exist in the oldest version in `VERSIONS` are not listed."""
PARTS_SINCE = "1.6"
"""The first version of ATIF (Agent Trajectory Interchange Format) in which the content of a message or of a
tool result can be a list of parts (texts, images) instead of a string."""
_PART_SINCE = {"text": "1.6", "image": "1.6", "audio": "1.8"}
Object = dict[str, Any]
_AGENT_ONLY = ("model_name", "reasoning_effort", "reasoning_content", "tool_calls", "metrics")


@dataclass(frozen=True)
class Rule:
    """One rule that documents in ATIF (Agent Trajectory Interchange Format) must satisfy, with a function
    that finds its violations."""

    name: str
    says: str
    """What the rule demands, in words, for documentation."""
    broken: Callable[[Object], Iterator[str]]
    """A function that takes a document and yields one message for each violation of the rule."""


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
"""The fields of each kind of object in ATIF (Agent Trajectory Interchange Format), such as `step`: for each
tuple of Python types, the names (separated by spaces) of the fields whose values must have one of these
types."""
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
    """Checks a document in ATIF (Agent Trajectory Interchange Format) against `RULES`. Returns one message
    `RULE: VIOLATION` for each violation, in the order of the rules; an empty list if the document is valid.

    If the first rule is violated (fields are missing, unknown or of the wrong type), the other rules are not
    checked.
    """
    for rules in (RULES[:1], RULES[1:]):
        if messages := [f"{rule.name}: {one}" for rule in rules for one in rule.broken(document)]:
            return messages
    return []


def schema(version: str) -> str:
    """Returns the value that the field `schema_version` has in documents of a version of ATIF (Agent
    Trajectory Interchange Format): `ATIF-v1.7` for `1.7`."""
    return f"{_PREFIX}{version}"


def _version(document: Object) -> str:
    return str(document["schema_version"]).removeprefix(_PREFIX)


def objects(document: Object) -> Iterator[tuple[str, str, Any]]:
    """Yields the objects of a document in ATIF (Agent Trajectory Interchange Format), each as a tuple: its
    kind (such as `step`), its path in the document (such as `steps[0]`), and the object. The document itself
    comes first, and each object comes before those that it contains."""
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
    for kind, where, value in objects(document):
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
    if document["schema_version"] not in map(schema, VERSIONS):
        yield f"is {document['schema_version']!r}"


def _since(document: Object) -> Iterator[str]:
    version = _version(document)
    for kind, where, value in objects(document):
        for name, since in SINCE.get(kind, {}).items():
            if value.get(name) is not None and since > version:
                yield f"{where or 'the document'} has {name}, which is new in {since}"


def _parts(document: Object) -> Iterator[str]:
    """Checks those messages and tool results of a document whose content is a list of parts (texts, images)
    instead of a string. Yields one message for each list that the document's version does not allow, and for
    each invalid part."""
    version = _version(document)
    fields = {"step": "message", "result": "content"}
    for kind, where, value in objects(document):
        parts = value.get(fields.get(kind, ""))
        if not isinstance(parts, list):
            continue
        if version < PARTS_SINCE:
            yield f"{where} has parts, which are new in {PARTS_SINCE}"
        for n, part in enumerate(parts):
            if problem := _wrong_part(part, version):
                yield f"{where}.{fields[kind]}[{n}] {problem}"


def _wrong_part(part: Any, version: str) -> str:
    """Checks one part (a text, an image or audio) of a message or tool result. Returns a phrase that says
    what is wrong with it in the given `version` of the format; empty if it is valid."""
    kind = part.get("type") if isinstance(part, dict) else None
    if kind not in _PART_SINCE or _PART_SINCE[kind] > version:
        return f"has type {kind!r}, which ATIF-v{version} does not know"
    if unknown := set(part) - {"type", "text", "source"}:
        return f"has {sorted(unknown)[0]!r}, which is no field of a part"
    source = part.get("source")
    if kind == "text":
        right = isinstance(part.get("text"), str) and source is None
    else:
        right = part.get("text") is None and isinstance(source, dict)
        right = right and str(source.get("media_type")).startswith(f"{kind}/")
        right = right and isinstance(source.get("path"), str)
    return "" if right else f"is no {kind}"


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
    Rule("schema_version", f"is one of {', '.join(map(schema, VERSIONS))}", _schema),
    Rule("since", "has no field that is newer than its version", _since),
    Rule("parts", "lists of parts hold text, images and audio, as its version has them", _parts),
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
"""The rules for documents in ATIF (Agent Trajectory Interchange Format). The rules after the first are only
checked in documents that satisfy the first."""
