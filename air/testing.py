"""Public fakes of a model and of a world (what an agent acts in), for demonstrations and for users' tests.

`ScriptedServer` is a real HTTP server for the chat-completions protocol that returns scripted replies. With a
tokenizer it also supports vLLM's protocol of token ids, which training uses. `ScoringServer` replaces the
server of a teacher model, which the algorithm `opd` (on-policy distillation) needs. The code under test
connects to these servers as to real ones and needs no change. `SOURCE` offers two tasks in a small world. In
`air.testing:letters`, each reply must contain the letter that the world shows. In `air.testing:unreachable`,
every action raises InfrastructureError, as if the world's server did not answer.
"""

from __future__ import annotations

import functools
import json
import random
import re
import socket
import threading
import time
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from air.actions import Action, AnswerFormat, Standing
from air.actions import Message as ActionMessage
from air.errors import InfrastructureError, MissingError
from air.worlds.base import Observation, Step
from air.worlds.sources import WorldTask

Message = dict[str, Any]
Script = Callable[[Sequence[Message]], str | Message]
"""The type of functions that take a conversation's messages and return the next reply: a text, or an
assistant's message with tool calls or with `reasoning_content`."""
_POLL_SECONDS = 0.02
"""Interval in seconds at which a server of this module checks whether it must stop. Python's default, 0.5 s,
would delay each shutdown."""
GENERATE = "/inference/v1/generate"
_CHATML = re.compile(
    r"<\|im_start\|>(\w+)\n(?:<think>\n(.*?)\n</think>\n\n)?(.*?)<\|im_end\|>", re.DOTALL
)


class _LoopbackServer:
    """An HTTP server on a loopback address with a free port. It runs during its `with` block."""

    def __init__(self, handler: type[BaseHTTPRequestHandler]) -> None:
        self._server = _Server(("127.0.0.1", 0), handler)
        serve = functools.partial(self._server.serve_forever, poll_interval=_POLL_SECONDS)
        self._thread = threading.Thread(target=serve, daemon=True)

    @property
    def url(self) -> str:
        """The base URL of the server; it ends in `/v1`."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class ScriptedServer(_LoopbackServer):
    """An HTTP server on a loopback address that answers with scripted replies instead of a model's. It runs
    during its `with` block.

    `script` returns the next reply of a conversation; several threads may call it at once. `tokenizer` is the
    tokenizer of a model with the ChatML prompt format, such as Qwen. If it is given, the server also supports
    vLLM's protocol of token ids, and ends every reply in this protocol with the end-of-sequence token.
    """

    def __init__(self, script: Script, tokenizer: Any = None) -> None:
        super().__init__(_handler(script, tokenizer))


Score = Callable[[Sequence[int]], Sequence[float]]
"""The type of functions that take token ids and return the log-probability of each of these tokens."""


class ScoringServer(_LoopbackServer):
    """An HTTP server on a loopback address that returns log-probabilities of token ids. It runs during its
    `with` block.

    It answers `GET /v1/models` and `POST /v1/completions` with `prompt_logprobs`, as vLLM does. `score`
    computes the log-probabilities; it is called for one request at a time, and its value for the first token
    of a sequence is ignored. `name` is the name of the model.
    """

    def __init__(self, score: Score, name: str = "teacher") -> None:
        super().__init__(_scoring_handler(score, name))


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, address = super().get_request()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection, address


def replies(*texts: str | Message) -> Script:
    """Returns a script for `ScriptedServer` that gives the replies `texts` (strings or assistant messages) in
    order. After the last reply, it gives the last reply again and again."""

    def script(conversation: Sequence[Message]) -> str | Message:
        turn = sum(1 for message in conversation if message["role"] == "assistant")
        return texts[min(turn, len(texts) - 1)]

    return script


def reasoned(reasoning: str, content: str) -> Message:
    """Returns a scripted reply with reasoning, as an assistant message: `content` is the text of the reply;
    `reasoning` is what the model thought before it, in a field of its own."""
    return {"role": "assistant", "content": content, "reasoning_content": reasoning}


def tool_calls(*commands: str, tool: str = "bash", closing: str = "Done.") -> Script:
    """Returns a script for `ScriptedServer` in which each reply calls the tool `tool`, with the next of the
    strings `commands` as its argument `command`. After the last command, the reply is the text `closing`."""

    def script(conversation: Sequence[Message]) -> str | Message:
        turn = sum(1 for message in conversation if message["role"] == "assistant")
        if turn >= len(commands):
            return closing
        function = {"name": tool, "arguments": json.dumps({"command": commands[turn]})}
        call = {"id": f"call_{turn}", "type": "function", "function": function}
        return {"role": "assistant", "content": None, "tool_calls": [call]}

    return script


class _JsonHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    model = "scripted"

    def do_GET(self) -> None:
        self._answer(200, {"object": "list", "data": [{"id": self.model, "object": "model"}]})

    def _request(self) -> dict[str, Any]:
        request: dict[str, Any] = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        return request

    def _answer(self, status: int, body: dict[str, Any]) -> None:
        self._send(status, "application/json", json.dumps(body).encode())

    def _send(self, status: int, kind: str, data: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        pass


def _scoring_handler(score: Score, name: str) -> type[BaseHTTPRequestHandler]:
    lock = threading.Lock()

    class Handler(_JsonHandler):
        model = name

        def do_POST(self) -> None:
            request = self._request()
            if not self.path.endswith("/completions"):
                self._answer(404, {"error": f"{self.path} is not served"})
                return
            ids = request["prompt"]
            with lock:
                scores = score(ids)
            entries: list[Any] = [None]
            entries += [
                {str(token): {"logprob": value, "rank": 1, "decoded_token": ""}}
                for token, value in zip(ids[1:], scores[1:], strict=True)
            ]
            choice = {"index": 0, "text": "", "finish_reason": "length", "prompt_logprobs": entries}
            self._answer(200, {"id": "scored", "model": name, "choices": [choice]})

    return Handler


def _handler(script: Script, tokenizer: Any) -> type[BaseHTTPRequestHandler]:
    lock = threading.Lock()  # a tokenizer is not thread-safe

    class Handler(_JsonHandler):
        def do_POST(self) -> None:
            request = self._request()
            if self.path == GENERATE and tokenizer is not None:
                with lock:
                    self._answer(200, _generation(request, script, tokenizer))
                return
            reply = script(request["messages"])
            tokens = sum(len(str(m.get("content")).split()) for m in request["messages"])
            completion = _completion(request.get("model", "scripted"), reply, tokens)
            if request.get("stream"):
                self._send(200, "text/event-stream", _events(completion))
            else:
                self._answer(200, completion)

    return Handler


def _completion(model: str, reply: str | Message, prompt_tokens: int) -> dict[str, Any]:
    message = {"role": "assistant", "content": reply} if isinstance(reply, str) else reply
    words = len(str(reply).split())
    return {
        "id": "scripted",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "choices": [
            {
                "index": 0,
                "message": message,
                "finish_reason": "tool_calls" if message.get("tool_calls") else "stop",
            }
        ],
        "usage": {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": words,
            "total_tokens": prompt_tokens + words,
        },
    }


def _events(completion: dict[str, Any]) -> bytes:
    """Returns a chat completion as server-sent events: first the reply, then the finish reason, then the
    token usage."""
    base = {**completion, "object": "chat.completion.chunk"}
    choice, usage = base.pop("choices")[0], base.pop("usage")
    delta = dict(choice["message"])
    calls = [{"index": n, **call} for n, call in enumerate(delta.pop("tool_calls", ()))]
    delta |= {"tool_calls": calls} if calls else {}
    ending = {"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}
    chunks = [
        {**base, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]},
        {**base, "choices": [ending]},
        {**base, "choices": [], "usage": usage},
    ]
    lines = [f"data: {json.dumps(chunk)}\n\n" for chunk in chunks]
    return "".join([*lines, "data: [DONE]\n\n"]).encode()


def _generation(request: dict[str, Any], script: Script, tokenizer: Any) -> dict[str, Any]:
    prompt = tokenizer.decode(request["token_ids"])
    reply = script([_parsed(*match) for match in _CHATML.findall(prompt)])
    ids = [*tokenizer.encode(_as_text(reply), add_special_tokens=False), tokenizer.eos_token_id]
    limit = request["sampling_params"].get("max_tokens")
    cut = limit is not None and len(ids) > limit
    ids = ids[:limit] if cut else ids
    entries = [
        {"token": f"token_id:{n}", "logprob": -1.0, "bytes": [], "top_logprobs": []} for n in ids
    ]
    choice = {
        "index": 0,
        "token_ids": ids,
        "logprobs": {"content": entries},
        "finish_reason": "length" if cut else "stop",
    }
    return {"request_id": "scripted", "choices": [choice]}


def _parsed(role: str, reasoning: str, content: str) -> Message:
    message = {"role": role, "content": content}
    return {**message, "reasoning_content": reasoning} if reasoning else message


def _as_text(reply: str | Message) -> str:
    """Converts a scripted reply to the text that a model with the ChatML format would write: first the
    reasoning, if any, between `<think>` and `</think>`, then the content. Raises TypeError if the reply has
    tool calls."""
    if isinstance(reply, str):
        return reply
    if reply.get("tool_calls"):
        raise TypeError("a script can make tool calls only with the chat-completions protocol")
    reasoning, content = reply.get("reasoning_content"), str(reply.get("content") or "")
    return f"<think>\n{reasoning}\n</think>\n\n{content}" if reasoning else content


class WholeReplyFormat(AnswerFormat):
    """An action format (the syntax in which a model writes actions) without any syntax: the whole reply is
    the action. An empty reply is not a valid action."""

    name = "plain"
    form = "Reply with your action and nothing else."

    def answer_in(self, message: ActionMessage) -> str:
        """Returns the whole reply, without white space at its start and end."""
        return message.text.strip()

    def reply_with(self, thought: str, answer: str) -> str:
        """Returns `answer` alone, because this format has no place for the thought."""
        return answer

    def footer(self, standing: Standing) -> str:
        """Returns an empty string: this format appends no text to observations. (`standing`, such as the
        number of turns left, is not used; the base class demands the argument.)"""
        return ""


class Letters:
    """A small world (what an agent acts in) for tests. An episode has three turns. Each turn shows a letter;
    a reply that contains this letter earns reward 1, any other reply 0. If `unreachable` is true, every
    action raises InfrastructureError instead, as if the world's server did not answer."""

    TURNS = 3

    def __init__(self, *, unreachable: bool = False) -> None:
        self._unreachable = unreachable
        self._letters: list[str] = []
        self._hits: list[bool] = []

    async def reset(self, seed: int) -> Observation:
        """Draws three letters at random from `seed`; returns an observation that shows the first letter."""
        rng = random.Random(seed)
        self._letters, self._hits = [rng.choice("aeiou") for _ in range(self.TURNS)], []
        return Observation(self._shown())

    async def step(self, action: Action) -> Step:
        """Plays one turn. Returns reward 1 if the action contains the letter that was shown (in upper or
        lower case), else 0, and an observation with the next letter. After the third letter, the episode is
        done. If the world is `unreachable`, raises InfrastructureError."""
        if self._unreachable:
            raise InfrastructureError("the server of the letters does not answer")
        if not self._letters or len(self._hits) >= self.TURNS:
            return Step(Observation("The episode is over."), done=True)
        self._hits.append(self._letters[len(self._hits)] in action.answer.lower())
        done = len(self._hits) == self.TURNS
        shown = "The end." if done else self._shown()
        return Step(Observation(shown), done=done, reward=float(self._hits[-1]))

    async def close(self) -> dict[str, Any]:
        """Ends the episode. Returns a dict in which `hits` is the number of replies that contained their
        letter."""
        return {"hits": sum(self._hits)}

    def facts(self) -> dict[str, float]:
        """Returns the metrics of the episode by name: `success` is 1 if each of the three replies contained
        its letter, else 0; `num_actions` is the number of actions so far."""
        found = len(self._hits) == self.TURNS and all(self._hits)
        return {"success": float(found), "num_actions": float(len(self._hits))}

    def _shown(self) -> str:
        return f"Write the letter {self._letters[len(self._hits)]}."


class Source:
    """Offers two tasks for tests, both in the world `Letters` (write the letter that is shown):
    `air.testing:letters`, and `air.testing:unreachable`, in which every action raises InfrastructureError.
    `air.worlds.sources`, which finds the worlds of plugins, finds this class by the name `air.testing`."""

    def load(self, name: str) -> WorldTask:
        """Returns the task with the name `letters` (the agent must write letters) or `unreachable` (every
        action fails); raises MissingError for another name."""
        if name not in self.names():
            raise MissingError(
                f"there is no world {name!r}", remedy=f"use {' or '.join(self.names())}"
            )
        unreachable = name == "unreachable"
        return WorldTask(
            id=f"air.testing:{name}",
            make=functools.partial(Letters, unreachable=unreachable),
            instructions="Each turn, write a word that contains the letter.",
            digest="letters-1",
            replays=not unreachable,
            max_turns=Letters.TURNS,
            format="air.testing:WholeReplyFormat",
            format_penalty=0.5,
            facts={
                "success": "whether every reply had its letter",
                "num_actions": "replies that were actions",
            },
        )

    def names(self) -> list[str]:
        """Returns the names of the tasks of this source, `letters` and `unreachable`, without the prefix
        `air.testing:`."""
        return ["letters", "unreachable"]


SOURCE = Source()
