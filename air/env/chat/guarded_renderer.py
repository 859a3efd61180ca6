"""A renderer that no reply of the model can make fail.

In training, `verifiers` converts chat messages to token ids, and sampled token ids to a message, with a
renderer of the package `renderers`. Most renderers raise an exception for some replies, for example for a
tool call whose name is a number, or whose arguments are nested too deeply. Such an error would look like a
failure of the model server, and an episode with such a failure is not trained on. So an agent could escape a
bad reward with one reply. `GuardedRenderer` wraps another renderer and closes this way out:

- A reply that cannot be parsed is plain text, without tool calls. A tool call that cannot be represented is
  treated like one without a name: it is left out. The action format (the syntax of actions) then answers with
  a format error.
- A conversation that the chat template cannot express, although it can express ordinary tool calls, is
  reported as `InexpressibleError`. This is the agent's format error, and ends the episode.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar, TypeVar

import verifiers.v1 as vf
from pydantic import ConfigDict
from renderers import BaseRendererConfig, RendererConfig, create_renderer
from renderers.base import (
    ParsedResponse,
    ParsedToolCall,
    RenderedTokens,
    ToolCallParseStatus,
    is_multimodal,
)
from renderers.configs import CustomRendererConfig

T = TypeVar("T")

MAX_DEPTH = 100
"""How deeply the arguments of a tool call may be nested. Python's limit depends on the depth of the caller,
so a value just below it would pass here, and fail later."""
INEXPRESSIBLE = "the chat template cannot express this conversation"
"""The text by which the harness recognises an `InexpressibleError` in the answer of the model endpoint."""


class InexpressibleError(Exception):
    """Raised if the chat template cannot express a conversation, although it can express an ordinary one. So
    the cause is what the model replied, or what a program in the box wrote into the conversation."""


class GuardedRenderer:
    """Wraps the renderer `renderer`, as described in the module's docstring. Attributes that are not defined
    here are those of `renderer`. `tokenizer` is the tokenizer of the model."""

    def __init__(self, renderer: Any, tokenizer: Any) -> None:
        self._renderer = renderer
        self._tokenizer = tokenizer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._renderer, name)

    @property
    def is_multimodal(self) -> bool:
        """Whether the wrapped renderer also converts images. The package `renderers` asks for this attribute,
        and would look at the wrapper's type otherwise."""
        return bool(is_multimodal(self._renderer))

    def render(self, messages: list[Any], **options: Any) -> RenderedTokens:
        """Converts messages to token ids, as the wrapped renderer does. Raises InexpressibleError if the
        messages are the reason why it cannot, and otherwise its error."""
        return self._expressed(self._renderer.render, messages, options)

    def render_ids(self, messages: list[Any], **options: Any) -> list[int]:
        """Like `render`, but returns only the token ids."""
        return self._expressed(self._renderer.render_ids, messages, options)

    def parse_response(
        self,
        token_ids: list[int],
        *,
        tools: list[Any] | None = None,
        prompt_ids: list[int] | None = None,
    ) -> ParsedResponse:
        """Converts the sampled `token_ids` to a message. Raises nothing, whatever the model sampled: a reply
        that the wrapped renderer cannot parse becomes plain text, and tool calls that cannot be represented
        have no name."""
        try:
            parsed = self._renderer.parse_response(token_ids, tools=tools, prompt_ids=prompt_ids)
            parsed.content.encode()
            (parsed.reasoning_content or "").encode()
        except Exception:  # renderers do not check replies, and raise any exception
            return ParsedResponse(content=self._text(token_ids))
        calls = [call if _representable(call) else _unnamed(call) for call in parsed.tool_calls]
        return replace(parsed, tool_calls=calls)

    def _text(self, token_ids: Sequence[int]) -> str:
        stops = set(self._renderer.get_stop_token_ids())
        end = next((at for at, token in enumerate(token_ids) if token in stops), len(token_ids))
        return str(self._tokenizer.decode(token_ids[:end]))

    def _expressed(
        self, render: Callable[..., T], messages: list[Any], options: dict[str, Any]
    ) -> T:
        try:
            return render(messages, **options)
        except Exception as error:  # chat templates raise any exception
            try:
                render(_ordinary(options.get("tools")), **options)
            except Exception:  # the template is unsuitable, which is no fault of the model
                raise error from None
            what = f"{type(error).__name__}: {error}"
            raise InexpressibleError(f"{INEXPRESSIBLE} ({what})") from error


class GuardedRendererConfig(BaseRendererConfig):
    """The settings of `ConfiguredRenderer`. Further fields are keyword arguments of the chat template."""

    model_config = ConfigDict(frozen=True, extra="allow")

    renderer: RendererConfig | None = None
    """The config of the wrapped renderer; None: the one that `renderers` chooses for the model."""

    _internal_fields: ClassVar[frozenset[str]] = frozenset({"renderer"})
    _allow_opaque_template_kwargs: ClassVar[bool] = True


class ConfiguredRenderer(GuardedRenderer):
    """A `GuardedRenderer` in the form in which the package `renderers` creates custom renderers."""

    config_class = GuardedRendererConfig

    def __init__(self, tokenizer: Any, config: GuardedRendererConfig) -> None:
        wrapped = create_renderer(
            tokenizer, config.renderer, chat_template_kwargs=config.model_extra or None
        )
        super().__init__(wrapped, tokenizer)
        self.config = config


_IMPORT_PATH = f"{ConfiguredRenderer.__module__}.{ConfiguredRenderer.__qualname__}"


def guarded(ctx: vf.ModelContext) -> vf.ModelContext:
    """Returns a copy of `ctx`, `verifiers`' settings of the model, in which the client guards its renderer.
    Returns `ctx` itself if its client has no renderer, as in evaluation, or a guarded one."""
    client = ctx.client
    if not isinstance(client, vf.TrainClientConfig):
        return ctx
    if getattr(client.renderer, "import_path", None) == _IMPORT_PATH:
        return ctx
    wrapped = client.renderer
    # Fields that the user has not set are left out: for a renderer, to set a default is not the same.
    fields = wrapped and {"name": wrapped.name, **wrapped.model_dump(exclude_unset=True)}
    config = CustomRendererConfig.model_validate(
        {"name": "custom", "import_path": _IMPORT_PATH, "renderer": fields}
    )
    return replace(ctx, client=client.model_copy(update={"renderer": config}))


def _ordinary(tools: Sequence[Any] | None) -> list[Any]:
    """Returns an ordinary conversation: a question, a reply and its answer, with a tool call if there are
    `tools`."""
    question = {"role": "user", "content": "question"}
    if not tools:
        return [question, {"role": "assistant", "content": "reply"}, {**question}]
    name = tools[0].get("function", tools[0]).get("name", "tool")
    call = {"id": "call_0", "type": "function", "function": {"name": name, "arguments": "{}"}}
    return [
        question,
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_0", "content": "answer"},
    ]


def _unnamed(call: ParsedToolCall) -> ParsedToolCall:
    status = ToolCallParseStatus.MISSING_NAME
    return replace(call, name=None, arguments=None, id=None, status=status)


def _representable(call: ParsedToolCall) -> bool:
    """Whether a message in JSON can contain the tool call: its name and id are text, and its arguments are
    JSON."""
    if not isinstance(call.name, str | None) or not isinstance(call.id, str | None):
        return False
    if not isinstance(call.arguments, str) and _depth(call.arguments) > MAX_DEPTH:
        return False
    given = call.arguments
    try:
        text = given if isinstance(given, str) else json.dumps(given)
        "".join([call.name or "", call.id or "", call.raw, text]).encode()
    except (TypeError, ValueError):  # includes text with half a character (a lone surrogate)
        return False
    return True


def _depth(value: Any) -> int:
    """Returns how deeply lists and dicts are nested in `value`. Does not recurse."""
    deepest, rest = 0, [(value, 0)]
    while rest:
        value, depth = rest.pop()
        deepest = max(deepest, depth)
        if isinstance(value, dict | list):
            inner = value.values() if isinstance(value, dict) else value
            rest += [(each, depth + 1) for each in inner]
    return deepest
