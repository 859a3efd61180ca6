"""Converts trajectories (records of episodes) to documents in ATIF, the Agent Trajectory Interchange Format.
Data without a field in ATIF is stored under `extra`."""

from __future__ import annotations

from datetime import UTC, datetime

from air import json_lines
from air.errors import ConfigError, boundary
from air.trajectories.atif.rules import NEWEST, SINCE, Object, objects, schema
from air.trajectories.importers import traces
from air.trajectories.schema import MessageCall, Start, Step, ToolUse, Trajectory

_STRUCTURE_ERRORS = (KeyError, TypeError, ValueError)


def to_atif(one: Trajectory, *, tokens: bool = False, version: str = NEWEST) -> Object:
    """Converts a trajectory (the record of an episode) to a document in ATIF, the Agent Trajectory
    Interchange Format: a dictionary that can be written as JSON.

    Fields that ATIF's version `version` does not have are left out. With `tokens`, the token ids and
    log-probabilities of the replies are added from the trace, a file beside the trajectory in which the
    library `verifiers` recorded the tokens. Raises ConfigError if the trajectory lacks its line of the type
    `start` (the episode failed when it began), if a time is invalid, or if the tokens are missing.
    """
    start, end = one.start, one.end
    if start is None:
        raise ConfigError("ended before it began", where=str(one.path))
    nodes = _nodes(one) if tokens else []
    steps: list[Object] = []
    said, replied = start.opening or ("", "")
    before = (("system", start.system), ("user", said), ("agent", replied), ("user", start.prompt))
    for source, text in before:
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
        fields = ("ok", "why", "error", "reward", "terms", "metrics", "facts", "test")
        final["extra"] = end.model_dump(mode="json", include=set(fields))
    agent: Object = {
        "name": "air" if start.origin == "air" else start.origin,
        "version": start.versions.get("air-agent", "unknown"),
        "model_name": start.model,
        "extra": {"format": start.format, "settings": dict(start.settings)},
    }
    agent |= {"tool_definitions": [dict(tool) for tool in start.tools]} if start.tools else {}
    document = {
        "schema_version": schema(version),
        "session_id": start.trace or start.episode or one.path.stem,
        "trajectory_id": start.episode or one.path.stem,
        "agent": agent,
        "steps": numbered,
        "final_metrics": final,
        "extra": {"air": _about(start)},
    }
    for kind, _, value in objects(document):
        for name, since in SINCE.get(kind, {}).items():
            if since > version:
                value.pop(name, None)
    return document


def _about(start: Start) -> Object:
    left_out = {"system", "opening", "prompt", "settings", "format", "model", "tools"}
    return start.model_dump(mode="json", exclude=left_out)


def _step(one: Trajectory, step: Step, nodes: list[Object]) -> Object:
    """Converts one turn of the trajectory `one` (reply, tool calls, observation, tokens and gradings) to a
    step of ATIF, the Agent Trajectory Interchange Format. `nodes` are the episode's messages with their
    tokens, as the library `verifiers` recorded them; if `nodes` is empty, the result has no tokens."""
    calls = _calls(step)
    graded = [v.model_dump(mode="json", exclude={"t", "turn"}) for v in one.validations_of(step)]
    extra: Object = {"turn": step.turn, "code": step.code, "exec_seconds": step.exec_seconds}
    extra |= {"diff": step.diff.model_dump(mode="json")} if step.diff else {}
    extra |= {"validations": graded} if graded else {}
    extra |= {} if step.reward is None else {"reward": step.reward, "done": step.done}
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
    """Returns the tool calls of a turn in the form of ATIF (Agent Trajectory Interchange Format). These are
    the calls that the model server returned. If there are none, because the action was written in the reply's
    text, each part of the action (script, answer, tool, `validate` or `submit`) becomes a tool call."""
    if step.tool_calls:
        return [_message_call(step, n, one) for n, one in enumerate(step.tool_calls)]
    call = step.call
    if call is None:
        return [_call(step, 0, "action", {"text": step.action})] if step.action else []
    calls: list[tuple[str, Object]] = []
    if call.script:
        calls.append(("bash", {"script": call.script}))
    if call.answer:
        calls.append(("action", {"text": call.answer}))
    if call.tool is not None:
        calls.append((call.tool.name, _arguments(call.tool)))
    if call.ending is not None:
        calls.append((call.ending, {}))
    return [_call(step, n, name, arguments) for n, (name, arguments) in enumerate(calls)]


def _arguments(tool: ToolUse) -> Object:
    if tool.arguments is not None:
        return dict(tool.arguments)
    arguments: Object = {"args": list(tool.args)}
    return arguments | ({} if tool.body is None else {"body": list(tool.body)})


def _message_call(step: Step, number: int, call: MessageCall) -> Object:
    """Converts `call`, a tool call that the model server returned, to the form of ATIF (Agent Trajectory
    Interchange Format). If the arguments are not a JSON object, they become one argument with the name
    `text`. `number` is the index, from 0, of the call in the turn."""
    try:
        arguments = json_lines.decode(call.arguments or "{}")
    except ValueError:
        arguments = None
    if not isinstance(arguments, dict):
        arguments = {"text": call.arguments}
    ids = [one.id for one in step.tool_calls]
    made = _call(step, number, call.name, arguments)
    return made | ({"tool_call_id": call.id} if call.id and ids.count(call.id) == 1 else {})


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
        with boundary(ConfigError, f"{one.path}: step {step.turn}: odd trace", *_STRUCTURE_ERRORS):
            sampled = [n for n, mine in zip(node["token_ids"], node["mask"], strict=True) if mine]
        metrics |= {"completion_token_ids": sampled, "completion_tokens": len(sampled)}
        metrics |= {"logprobs": node["logprobs"]}
    return metrics


def _nodes(one: Trajectory) -> list[Object]:
    """Returns the messages of a trajectory's episode with their tokens: the nodes of the episode's trace, a
    record that the library `verifiers` made. Raises ConfigError if no trace was stored, or if it has no
    tokens."""
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
