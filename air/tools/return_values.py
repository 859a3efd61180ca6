"""Converts the value that a tool's function returns to a `Reply`.

A function may return a dict whose `observation` is a string, as the tools of AgentFly do (another framework
that trains agents). The content of a dict may come from the agent: a tool may return `json.loads(page)`, and
the agent may have chosen the page. Hence a dict can neither end the episode nor set the graded answer. Only
the tool's own code can: by `finish`, a `Reply`, or the decorator's argument `status`.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any, get_args

from air.tools.base import Reply, Status, Tool

_STATUSES: dict[Any, Status] = {
    "success": "success",
    "continue": "success",
    "error": "error",
    "finish": "finish",
    "terminal": "finish",
}
"""The statuses that a dict may have, with air's status for each. `continue` and `terminal` are AgentFly's."""


def as_reply(tool: Tool, value: Any) -> Reply:
    """Converts `value`, which the function of `tool` returned, to a `Reply`. A string becomes the text for
    the model. So does `observation` of a dict that has it as a string; the other keys become `info`. Any
    other value that is not a Reply becomes text as JSON. If the call succeeded, the reply has the status
    `tool.status`. Raises TypeError or ValueError, with a message for the tool's author, if the value cannot
    be converted."""
    if isinstance(value, Reply):
        reply = value
    elif isinstance(value, Mapping) and isinstance(value.get("observation"), str):
        reply = _of_mapping(tool, value)
    else:
        reply = Reply(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
    json.dumps(dict(reply.info), allow_nan=False)
    if reply.status not in get_args(Status) or not isinstance(reply.observation, str):
        raise ValueError(f"it returned a malformed reply: {reply!r:.100}")
    return dataclasses.replace(reply, status=tool.status) if reply.status == "success" else reply


def _of_mapping(tool: Tool, value: Mapping[str, Any]) -> Reply:
    info = dict(value)
    observation, status = info.pop("observation"), info.pop("status", "success")
    if info.pop("image", None) is not None:
        raise ValueError(
            "it returned an `image`, but an observation is only text: leave `image` out, or say in "
            "`observation` what it shows"
        )
    if "prediction" in info:
        raise ValueError(
            "it returned a dict with `prediction`, but a dict cannot set the answer that is graded: use "
            "another key, or return finish(observation, prediction=…)"
        )
    if not isinstance(status, str) or status not in _STATUSES:
        known = ", ".join(_STATUSES)
        raise ValueError(
            f"it returned the status {status!r:.40}, which does not exist: use one of {known}, or another key"
        )
    if _STATUSES[status] == "finish" and tool.status != "finish":
        raise ValueError(
            f"it returned a dict with the status {status!r}, but a dict cannot end the episode: return "
            'finish(observation), or use @tool(status="finish")'
        )
    return Reply(observation, _STATUSES[status], info)
