"""The harness `air`, the loop that plays the agent: plays an episode (one task, played to its end by a model)
turn by turn, in air's own process.

In a turn, the harness calls the model, reads an action from the reply, lets the world (what the agent acts
in) perform it, and gives the model the result, the observation. If the model server returns reasoning or tool
calls in fields separate from the reply's text, they are recorded, and sent back with the reply in later
requests. The action format (the syntax of actions) decides which part of a reply is an action. Every model
call goes to the endpoint that the library `verifiers` provides, so `verifiers`' trace, its record of the
episode, contains it.

The episode ends after an action that ends it, such as `submit`; after the last turn; when the next prompt
would exceed the model's context; after a reply that was cut at the token limit; or after too many consecutive
format errors. In all of these cases the episode keeps its reward. In a research task, the artefact (the files
that the agent hands in) is then graded.
"""

from __future__ import annotations

import asyncio
import functools
import io
import json
import ssl
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NoReturn

import aiohttp
import verifiers.v1 as vf
from verifiers.v1.dialects.chat import REASONING_FIELDS, reasoning_text
from verifiers.v1.runtimes import ProgramResult

from air import json_lines
from air.actions import ActionFormat, FormatError, Message, MessageCall
from air.env.chat.guarded_renderer import INEXPRESSIBLE
from air.env.config import AirHarnessConfig
from air.env.episode import EARLY_SECONDS, OVERLONG, Episode
from air.env.observation_truncation import TokenCounter, counter_for
from air.env.runtimes.box_runtime import episode_of
from air.errors import InferenceError
from air.trajectories import TokenRef

TURN_OVERHEAD_TOKENS = 16
"""An assumed upper limit: the number of tokens that a chat template adds around a user message with an
observation (the world's answer to an action)."""
TOOL_OVERHEAD_TOKENS = 8
"""An assumed upper limit: the number of tokens that a chat template adds around a tool message (a message
with a tool's result), in addition to `TURN_OVERHEAD_TOKENS`."""

PROMPT_TOO_LONG = "the prompt alone is longer than the context"
"""The error message for an episode whose first prompt already exceeds the model's context."""
BEFORE_ANY_REPLY = {
    "context": PROMPT_TOO_LONG,
    "format": "the chat template cannot express the prompt",
}
"""Error messages for an episode that ends for such a reason before the model's first reply, so that the model
is not the cause."""


@dataclass(frozen=True)
class Reply:
    """One reply of the model, with its token counts."""

    text: str
    cut: bool
    """Whether the reply ended because it reached the token limit."""
    total_tokens: int
    """The number of tokens in the prompt and the reply together."""
    completion_tokens: int
    reasoning: Mapping[str, Any] = field(default_factory=dict)
    """The response fields in which the model server returned the model's reasoning, separately from the text.
    They are sent back in later requests. Empty if there was no reasoning."""
    tool_calls: Sequence[Mapping[str, Any]] = ()
    """The tool calls that the model server returned in a field separate from the text. They are sent back in
    later requests."""

    @property
    def message(self) -> Message:
        """The reply as a `Message`, from which the action format (the syntax of actions) reads the action."""
        calls = [(call.get("id") or "", call.get("function") or {}) for call in self.tool_calls]
        return Message(
            text=self.text,
            tool_calls=tuple(
                MessageCall(name, call.get("name") or "", call.get("arguments") or "")
                for name, call in calls
            ),
            reasoning=reasoning_text(self.reasoning) or "",
        )


class AirHarness(vf.Harness[AirHarnessConfig]):
    """The harness `air`, a plugin of `verifiers`: plays an episode with a model in the role of the agent. The
    loop runs in this process, and the agent's commands run in the box, the agent's container."""

    APPENDS_SYSTEM_PROMPT = True
    EXECUTES_CODE = True
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: vf.ModelContext,
        trace: vf.Trace[Any, Any, Any],
        runtime: vf.Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: vf.TaskData,
    ) -> ProgramResult:
        """Plays an episode to its end; the episode's state is an attribute of `runtime`, `verifiers`' object
        for the place where commands run. `verifiers` calls this method. The model is at the URL `endpoint`;
        `secret` authorises requests to it. `verifiers` demands the other parameters; `mcp_urls` is ignored.
        Always returns exit code 0 and no output, because `verifiers` expects the result of a program, and
        none was run."""
        episode = episode_of(runtime)
        if isinstance(ctx.client, vf.TrainClientConfig):
            self.config.check_history()
        limit = episode.seconds - EARLY_SECONDS
        tools = episode.format.request_tools if episode.format else ()
        try:
            async with (
                asyncio.timeout(limit) as deadline,
                _Model(ctx, endpoint, secret, tools) as model,
            ):
                await self._play(episode, model, data, trace)
        except TimeoutError:
            if not deadline.expired():
                raise
            trace.stop("agent_timeout")
        return ProgramResult(exit_code=0, stdout="", stderr="")

    async def _play(
        self, episode: Episode, model: _Model, data: vf.TaskData, trace: vf.Trace[Any, Any, Any]
    ) -> None:
        max_turns = episode.max_turns
        tokens = await asyncio.to_thread(counter_for, self.config.tokenizer)
        observations: list[dict[str, Any]] = []
        messages = episode.messages(data.system_prompt, str(data.prompt))
        while True:
            reply = await self._ask(episode, model, messages, trace)
            if reply is None:
                return
            left = None if max_turns is None else max_turns - episode.counters.turns
            answers = await self.act(episode, reply, tokens, left)
            if episode.why_ended:
                return
            if left is not None and left <= 0:
                episode.why_ended = "turns"
                return
            messages += [model.repeated(reply), *answers]
            observations.append(answers[0])
            freed = await asyncio.to_thread(self._shorten_oldest, observations, tokens)
            added = await asyncio.to_thread(_observation_tokens, answers, tokens)
            if not model.keeps_reasoning:
                freed += await asyncio.to_thread(_reasoning_tokens, reply, tokens)
            if self._overflows(model, reply, added - freed):
                episode.counters.context_ends += 1
                episode.why_ended = "context"
                return

    def _shorten_oldest(self, observations: list[dict[str, Any]], tokens: TokenCounter) -> int:
        """Called once in each turn. If the setting `history` limits the number of observations that the model
        sees, replaces the text of the observation that has just become too old by a short note.
        `observations` are the messages with the observations so far, oldest first. Returns the number of
        tokens by which this shortens the next prompt; 0 if nothing was replaced."""
        if self.config.history is None or len(observations) <= self.config.history:
            return 0
        oldest = observations[-1 - self.config.history]
        before, lines = oldest["content"], oldest["content"].count("\n") + 1
        oldest["content"] = f"[{lines} lines left out]"
        return tokens.count(before) - tokens.count(oldest["content"])

    async def _ask(
        self,
        episode: Episode,
        model: _Model,
        messages: list[dict[str, Any]],
        trace: vf.Trace[Any, Any, Any],
    ) -> Reply | None:
        """Calls the model and returns its reply. Returns None, and stores the reason in `episode.why_ended`,
        if the prompt exceeds the model's context, if the model's chat template cannot express its earlier
        replies, or if `verifiers` rejected the call because `verifiers` has stopped the episode.

        Raises InferenceError if the endpoint failed, or if it cannot take even the first prompt.
        """
        began, nodes = time.monotonic(), len(trace.nodes)
        try:
            reply = await model.complete(messages)
        except _Stopped as stop:
            if not episode.counters.turns and stop.reason in BEFORE_ANY_REPLY:
                raise InferenceError(BEFORE_ANY_REPLY[stop.reason]) from None
            episode.why_ended = stop.reason
            episode.counters.context_ends += stop.reason == "context"
            episode.counters.format_errors += stop.reason == "format"
            return None
        finally:
            episode.counters.model_seconds += time.monotonic() - began
        episode.counters.turns += 1
        added = (nodes, len(trace.nodes)) if len(trace.nodes) > nodes else None
        tokens = TokenRef(
            nodes=added,
            prompt=reply.total_tokens - reply.completion_tokens,
            completion=reply.completion_tokens,
        )
        episode.note_call(time.monotonic() - began, tokens)
        return reply

    async def act(
        self, episode: Episode, reply: Reply, tokens: TokenCounter, left: int | None
    ) -> list[dict[str, Any]]:
        """Reads the action in `reply`, lets the world (what the agent acts in) perform it, and records the
        turn. Returns the messages to append to the next prompt, of which the first contains the observation
        (or the format error); an empty list if the reply was cut at the token limit. Sets `episode.why_ended`
        if the reply ends the episode. `left` is the number of turns that remain (None: no limit)."""
        action_format, message = episode.format, reply.message
        assert action_format is not None
        record = functools.partial(
            episode.record_step,
            reply.text,
            reasoning=message.reasoning or None,
            left=left,
            tool_calls=[asdict(call) for call in message.tool_calls],
        )
        if reply.cut:
            limit = self.config.max_context_tokens
            full = limit is not None and reply.total_tokens >= limit
            episode.counters.context_ends += full
            episode.counters.cut_replies += 1
            episode.counters.format_errors += not full
            episode.why_ended = "context" if full else "length"
            await record(None, None, "", problem="length")
            return []
        try:
            action = await asyncio.to_thread(action_format.read, message)
            action = replace(action, message=message)
        except FormatError as error:
            self._count_format_error(episode, action_format)
            shown = str(error) + action_format.footer(episode.standing(left))
            answers = action_format.observation(message, shown)
            await record(None, None, answers[0]["content"], problem="format")
            return answers
        episode.malformed_in_a_row = 0
        with episode.performing(action.text):
            step = await episode.world.step(action)
        limit = self.config.max_observation_tokens
        shown, cut = await asyncio.to_thread(tokens.cap, step.observation.text, limit)
        shown += action_format.footer(episode.standing(left))
        episode.counters.cut_observations += cut or step.observation.truncated
        answers = action_format.observation(message, shown)
        await record(action, step, answers[0]["content"])
        if step.done:
            episode.end()
        return answers

    def _count_format_error(self, episode: Episode, action_format: ActionFormat) -> None:
        episode.counters.format_errors += 1
        episode.malformed_in_a_row += 1
        retries = self.config.format_retries
        retries = action_format.retries if retries is None else retries
        if retries is not None and episode.malformed_in_a_row > retries:
            episode.why_ended = "format"

    def _overflows(self, model: _Model, reply: Reply, observation_tokens: int) -> bool:
        limit = self.config.max_context_tokens
        if limit is None:
            return False
        needed = reply.total_tokens + observation_tokens + TURN_OVERHEAD_TOKENS
        return bool(needed + (model.max_tokens or 1) > limit)


def _reasoning_tokens(reply: Reply, tokens: TokenCounter) -> int:
    return min(reply.completion_tokens, tokens.count(reasoning_text(reply.reasoning) or ""))


def _observation_tokens(messages: Sequence[Mapping[str, Any]], tokens: TokenCounter) -> int:
    """Returns the estimated number of tokens that `messages` add to the prompt, without the overhead
    `TURN_OVERHEAD_TOKENS` of the first message, which the caller adds."""
    in_tools = sum(TOOL_OVERHEAD_TOKENS for message in messages if message["role"] == "tool")
    further = TURN_OVERHEAD_TOKENS * (len(messages) - 1)
    return in_tools + further + sum(tokens.count(message["content"]) for message in messages)


class _Stopped(Exception):
    """Raised if the model cannot be called again in this episode. `reason` is `context` (the prompt is too
    long), `format` (the chat template cannot express the model's replies) or `stopped` (`verifiers` has
    stopped the episode)."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@functools.cache
def _ssl() -> ssl.SSLContext:
    return ssl.create_default_context()  # takes 20 ms to make, so all episodes share it


class _Model:
    """HTTP client that requests the model's replies from the model endpoint that the library `verifiers`
    provides."""

    def __init__(
        self,
        ctx: vf.ModelContext,
        endpoint: str,
        secret: str,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        self._body = {"model": ctx.model} | ({"tools": list(tools)} if tools else {})
        self.max_tokens = ctx.sampling.max_tokens
        self._last: Reply | None = None
        self._trains = isinstance(ctx.client, vf.TrainClientConfig)
        self.keeps_reasoning = self._trains
        """Whether the model's chat template keeps the reasoning of earlier replies in prompts. Derived from
        the token counts of the last prompt. Until they show it, the value is true in training, so that the
        token limit is never exceeded, and false otherwise."""
        self._url = f"{endpoint.rstrip('/')}/chat/completions"
        # aiohttp needs a third of httpx' time for a request, and small models make many. It ignores the
        # environment's proxies, as it must: the endpoint is on loopback.
        self._http = aiohttp.ClientSession(
            headers={"Authorization": f"Bearer {secret}", "Content-Type": "application/json"},
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=30),
            connector=aiohttp.TCPConnector(ssl=_ssl()),
        )

    async def __aenter__(self) -> _Model:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._http.close()

    def repeated(self, reply: Reply) -> dict[str, Any]:
        """Returns the model's reply as a chat message (role `assistant`), to be sent back to the model in
        later requests. In training the reply is unchanged, because its tokens must stay the same. In
        evaluation, arguments of tool calls that are not a JSON object are replaced by an empty object:
        servers such as vLLM's reject requests with malformed arguments, and the agent must not be able to
        cause such a failure."""
        message = {"role": "assistant", "content": reply.text, **reply.reasoning}
        if reply.tool_calls:
            calls = list(reply.tool_calls)
            message["tool_calls"] = calls if self._trains else [_with_json(call) for call in calls]
        return message

    async def complete(self, messages: list[dict[str, Any]]) -> Reply:
        """Requests one chat completion; `verifiers` sets the sampling parameters. Raises InferenceError if
        the endpoint failed, and _Stopped if the model cannot be called again."""
        request = json.dumps({**self._body, "messages": messages}).encode()
        try:
            # A file, because aiohttp warns of bodies over 1 MiB that are bytes or its argument `json`.
            async with self._http.post(self._url, data=io.BytesIO(request)) as response:
                status, text = response.status, await response.text()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise InferenceError(f"the model endpoint could not be reached: {error!r}") from error
        if status != 200:
            _refuse(status, text)
        body = json.loads(text)
        choice = body["choices"][0]
        message, usage = choice["message"], body.get("usage") or {}
        reply = Reply(
            text=message.get("content") or "",
            cut=choice.get("finish_reason") == "length",
            total_tokens=int(usage.get("total_tokens") or 0),
            completion_tokens=int(usage.get("completion_tokens") or 0),
            reasoning={name: message[name] for name in REASONING_FIELDS if message.get(name)},
            tool_calls=message.get("tool_calls") or (),
        )
        if self._last is not None and self._last.reasoning:
            prompt = reply.total_tokens - reply.completion_tokens
            self.keeps_reasoning = prompt >= self._last.total_tokens
        self._last = reply
        return reply


def _with_json(call: Mapping[str, Any]) -> Mapping[str, Any]:
    function = call.get("function") or {}
    try:
        plain = isinstance(json_lines.decode(function.get("arguments") or ""), dict)
    except ValueError:
        plain = False
    return call if plain else {**call, "function": {**function, "arguments": "{}"}}


def _refuse(status: int, text: str) -> NoReturn:
    if INEXPRESSIBLE in text:
        raise _Stopped("format")
    if status == 400:
        if "rollout stopped" in text:
            raise _Stopped("stopped")
        if any(sign in text.lower() for sign in OVERLONG):
            raise _Stopped("context")
    raise InferenceError(f"the model endpoint answered {status}: {text[:500]}")
