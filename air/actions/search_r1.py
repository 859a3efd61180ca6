"""The `search_r1` action format: a thought, then one `<search>` or one `<answer>`. It is modelled on
Search-R1, a method that trains models to search.

A search calls the tool `search` with one argument `query`, the text between `<search>` and `</search>`; an
answer is the final answer's text. The model sees the result of a search between `<information>` and
`</information>`, tags that it must not write itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

from air.actions.base import Action, FormatError, Message
from air.actions.tags import after_thought, find_tagged_text
from air.actions.world_format import WorldFormat
from air.errors import ConfigError

SEARCH: Mapping[str, Any] = {
    "type": "function",
    "function": {
        "name": "search",
        "description": "Searches for a text.",
        "parameters": {
            "type": "object",
            "properties": {"query": {"type": "string"}},
            "required": ["query"],
        },
    },
}
"""The schema of the tool `search`, in the format of the field `tools` in OpenAI's API. It is the only tool
that the format `search_r1` can call."""


class SearchR1(WorldFormat):
    """The `search_r1` action format: one `<search>`, which calls the tool `search`, or one `<answer>`."""

    name = "search_r1"
    instructions = (
        "First think between <think> and </think>. Then either search, with <search>query</search>: what is "
        "found comes back between <information> and </information>. Or finish, with <answer>answer</answer>."
    )

    def with_tools(self, tools: Sequence[Mapping[str, Any]], *, answers: bool = False) -> Self:
        for tool in tools:
            function = tool.get("function", tool)
            needed = (function.get("parameters") or {}).get("required") or ()
            if function.get("name") != "search" or list(needed) != ["query"]:
                raise ConfigError(
                    f"the action format {self.name!r} cannot call the tool {function.get('name')!r:.80}: it "
                    "has only `search`, with the one argument `query`",
                    where="env.agent.harness.format",
                    remedy="use tool_calls, or another format that calls any tool",
                )
        return type(self)(tools, answers=answers)

    def read(self, message: Message) -> Action:
        rest = after_thought(message, ("answer", "search", "information"))
        if "<information>" in rest or "</information>" in rest:
            raise FormatError(
                "Format error: <information> is not yours to write. Stop after </search>."
            )
        search, answer = find_tagged_text(rest, "search"), find_tagged_text(rest, "answer")
        if search is not None and answer is not None:
            raise FormatError("Format error: both <search> and <answer> found. Write exactly one.")
        if answer is not None:
            return Action(answer=_text(answer.inside, "answer"))
        if search is None:
            raise FormatError(
                f"Format error: neither <search> nor <answer> found. {self.instructions}"
            )
        if not self.toolbox:
            raise FormatError("Format error: there is no search here. Finish with <answer>.")
        query = {"query": _text(search.inside, "search")}
        return Action(tool=self.toolbox.checked("search", query))

    def written(self, thought: str, action: Action) -> str:
        if action.tool is None:
            return f"<think>{thought}</think>\n<answer>{action.answer}</answer>"
        query = (action.tool.arguments or {}).get("query", "")
        return f"<think>{thought}</think>\n<search>{query}</search>"

    def observation(self, message: Message, shown: str) -> list[dict[str, Any]]:
        try:
            searched = self.read(message).tool is not None
        except FormatError:
            searched = False
        content = f"<information>{shown}</information>" if searched else shown
        return super().observation(message, content)


def _text(inside: str, tag: str) -> str:
    if not (text := inside.strip()):
        raise FormatError(f"Format error: <{tag}> is empty.")
    return text
