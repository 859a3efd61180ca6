"""The gateway: connects a program that plays the agent inside a box (a container) to the model and to the
grader.

The guest (air's program in every box) relays two loopback ports of the box to this process, so the box needs
no network. One port leads to `verifiers`' model endpoint; only requests that continue the program's
conversation pass (see `air.env.program.conversation`). The other port leads to the gateway itself. When the
executable `validate` or `submit` is run in the box, it connects to this port, and the gateway grades the
artefact (the files that the agent hands in). The executable then prints the result, the same text that a
model gets under air's own harness. The gateway ends the program after `submit`, after `verifiers` has stopped
the episode, and after an infrastructure error (one that is not the agent's fault), which the agent never
sees.

Limitations: the agent's commands run as the same user as the program, so they can kill it; the episode then
ends for the reason `killed`, and is graded. If a program rewrites its history, for instance to shorten it,
its next request is refused; when the program repeats that request, the episode ends for the reason `history`.
The task's limit `exec_seconds` has no effect, because the program sets the timeouts of its commands.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import time
from collections.abc import Coroutine
from typing import Any, get_args
from urllib.parse import urlsplit

import verifiers.v1 as vf
from verifiers.v1.runtimes import ProgramResult

from air.actions.base import Action, Ending
from air.env.chat.guarded_renderer import INEXPRESSIBLE
from air.env.episode import EARLY_SECONDS, OVERLONG
from air.env.program import http_requests
from air.env.program.conversation import Conversation
from air.env.program.http_requests import HttpRequest
from air.env.program.transcript import Transcript
from air.env.research_episode import ResearchEpisode
from air.errors import BoxEndedError, ConfigError
from air.sandbox.contract.box import Box
from air.sandbox.wire import port_relay

COMMANDS_HELP = (
    "\n`validate` and `submit` are commands of the shell, without arguments: the first scores the "
    "artefact as it is, the second scores it and ends the episode. It ends, and is scored, too when "
    "you call no tool, or when turns or time run out."
)
SUBMIT_HELP = (
    "\n`submit` is a command of the shell, without arguments. It hands in your work, which is graded then, "
    "and prints the next step, or ends the episode if there is none. Your work is handed in, too, when you "
    "call no tool, or when turns or time run out."
)
"""The text that tells the agent how to submit, for tasks with their own grading `Rules`, such as Harbor
tasks, in which `validate` gives no score."""
ENDINGS: tuple[Ending, ...] = get_args(Ending)
FOLDER = "/tmp/air"
"""The folder inside the box that contains the executables `validate` and `submit`."""
SAY_SECONDS = 10.0
WATCH_SECONDS = 0.2
"""Seconds between two checks of whether `verifiers` has stopped the episode."""
_API_KEY = re.compile(r"((?:^|[-_.])api[-_]key=)(.+)", re.DOTALL)
_PLACEHOLDER = "known-to-the-gateway"
_SERVER_FAULT_STATUSES = (401, 403, 407, 408, 425, 429)
"""HTTP status codes below 500 with which a model server reports a problem of its own, such as overload. If a
program fails after such a response, this is an infrastructure error, and not the agent's doing."""
_EXECUTABLE = '''#!/usr/bin/env python3
"""{ending}: answered outside this box."""
import socket
import sys

if len(sys.argv) > 1:
    sys.exit("{ending}: takes no arguments")
with socket.create_connection(("127.0.0.1", {port})) as sock:
    sock.sendall(b"{ending}\\n")
    code, _, text = sock.makefile("rb").read().partition(b"\\n")
if not code:
    sys.exit("{ending}: the episode is over")
sys.stdout.buffer.write(text)
sys.exit(int(code))
'''


class Gateway:
    """Connects one program that plays the agent in a box (a container) to the model and to the grader, during
    one episode."""

    def __init__(self, box: Box, episode: ResearchEpisode) -> None:
        self.box, self.episode = box, episode
        self.failure: Exception | None = None
        """The error that ended a grading and is not the agent's fault; None if there was none. An episode
        with such a failure is not used for training."""
        self._trace: vf.Trace[Any, Any, Any] | None = None
        self._turns: Transcript | None = None
        self._model: tuple[str, int] | None = None
        self._model_port = 0
        self._conversation: Conversation | None = None
        self._requests: set[asyncio.Task[None]] = set()
        self._secret = ""
        self._one_at_a_time = asyncio.Lock()
        self._one_request_at_a_time = asyncio.Lock()
        self._asking: asyncio.Task[Any] | None = None
        self._over = False
        self._refused = b""
        """The body of the latest refused request to the model. By comparison with it, `_note_refused` sees
        that the program repeats the request."""
        self._unreachable = False
        """Whether this process could not connect to the model endpoint."""
        self._ended = asyncio.Event()
        self._began = time.monotonic()

    async def open(self) -> None:
        """Opens the two loopback ports in the box, and writes the executables `validate` and `submit` into
        it. Raises BoxStartError if a port cannot be opened, and BoxDiedError if the box is gone."""
        self._model_port = await self.box.forward(0, self._to_model)
        port = await self.box.forward(0, self._answer)
        for ending in ENDINGS:
            text = _EXECUTABLE.format(ending=ending, port=port).encode()
            await self.box.write(self.box.path(f"{FOLDER}/{ending}"), text, mode=0o755)

    def begin(self, trace: vf.Trace[Any, Any, Any]) -> None:
        """Starts the episode's clock. Adds to the task's prompt, in `verifiers`' `trace` of the episode, a
        text that explains the executables `validate` and `submit` to the agent."""
        self._trace, self._turns = trace, Transcript(self.episode, trace)
        self._conversation = Conversation(trace)
        self._began = time.monotonic()
        limit = f" Only the first {self.episode.config.validates} validates are scored."
        text = SUBMIT_HELP if self.episode.world.task.rules else COMMANDS_HELP + limit
        prompt = str(trace.task.data.prompt) + text
        trace.task.data = trace.task.data.model_copy(update={"prompt": prompt})

    def model_url(self, url: str) -> str:
        """Returns the URL at which a program in the box reaches the model endpoint `url`. Raises ConfigError
        if the box is already connected to another endpoint, or if `url` is not plain HTTP."""
        parts = urlsplit(url)
        target = (parts.hostname or "", parts.port or 80)
        if parts.scheme != "http" or self._model not in (None, target):
            raise ConfigError(
                f"the box cannot reach {url}: it has one model endpoint, by plain HTTP",
                where="env.agent.harness.id",
                remedy='use harness id = "air", or an interception server on this machine',
            )
        self._model = target
        return parts._replace(netloc=f"127.0.0.1:{self._model_port}").geturl()

    def command(self, argv: list[str]) -> list[str]:
        """Returns a command that runs the command `argv` with the executables `validate` and `submit` on its
        PATH.

        Other processes in the box can read the command line. `argv` contains the secret that authorises
        requests to the model endpoint, so the secret is replaced by a placeholder. When the gateway forwards
        a request, it puts the secret back in place of the placeholder.
        """
        argv = [_API_KEY.sub(self._hidden, word) for word in argv]
        script = 'export PATH="$1:$PATH"; shift; exec "$@"'
        return ["sh", "-c", script, "air", self.box.path(FOLDER), *argv]

    def _hidden(self, match: re.Match[str]) -> str:
        self._secret = match[2]
        return match[1] + _PLACEHOLDER

    async def play(self, program: Coroutine[Any, Any, ProgramResult]) -> ProgramResult:
        """Runs `program`, the program that plays the agent, until it or the episode ends. Then waits for a
        running grading, except after the time limit.

        Returns the program's result. Its exit code is 0 if the episode ended first, or if the agent's
        commands ended the program. Raises InfrastructureError if a grading failed.
        """
        began = time.monotonic()
        running = asyncio.ensure_future(program)
        end_events = [asyncio.create_task(self._ended.wait()), asyncio.create_task(self._stopped())]
        try:
            done, _ = await asyncio.wait(
                [running, *end_events], timeout=self._left(), return_when=asyncio.FIRST_COMPLETED
            )
            self._over = True
            if not done and self._trace is not None:
                self._trace.stop("agent_timeout")
                return ProgramResult(exit_code=0, stdout="", stderr="")
            async with self._one_at_a_time:
                pass
            if self.failure is not None:
                raise self.failure
            return self._result(running)
        finally:
            self._over = True
            await self._cancel(running, *end_events)
            self._close(time.monotonic() - began)

    def _left(self) -> float:
        """Returns the number of seconds until the time limit of the episode."""
        limit = self.episode.seconds
        return max(0.0, limit - EARLY_SECONDS - (time.monotonic() - self._began))

    def _result(self, running: asyncio.Future[ProgramResult]) -> ProgramResult:
        """Returns the result of the program that plays the agent. `running` is the future of its run.

        `verifiers` treats an exit code other than 0 as a failure that is not the agent's fault. Therefore the
        returned exit code is 0 if the program failed because of the agent, for example because the agent
        ended its box. If running the program raised an error that the agent cannot have caused, raises it.
        """
        ended = ProgramResult(exit_code=0, stdout="", stderr="")
        if self._ended.is_set() or not running.done():
            return ended
        error = running.exception()
        if error is not None and (not isinstance(error.__cause__, BoxEndedError) or self._unplayed):
            raise error
        if error is not None:
            self.episode.world.box_end_reason = str(error.__cause__)
            self.episode.why_ended = "box"
            return ended
        result = running.result()
        if result.exit_code and (why := self._why_dead()):
            self.episode.why_ended = why
            self.episode.counters.context_ends += why == "context"
            self.episode.counters.format_errors += why == "format"
            return ProgramResult(exit_code=0, stdout=result.stdout, stderr=result.stderr)
        return result

    @property
    def _unplayed(self) -> bool:
        """Whether the model has not sent any reply yet. Then no command of the agent can have run."""
        return self._trace is None or not self._trace.num_turns

    def _why_dead(self) -> str:
        """Returns the reason why the program that plays the agent failed, if the cause lies in the box:
        `context` (the prompt became too long), `format` (the model's chat template cannot express its
        replies), or `killed` (by the agent's commands, or for lack of memory).
        Returns "" if the cause may lie outside, so that the agent may not be at fault."""
        trace = self._trace
        if trace is None or self._unplayed or trace.stop_condition is not None or self._unreachable:
            return ""
        error = trace.calls[-1].error if trace.calls else None
        if error is None:
            return "killed"
        if INEXPRESSIBLE in error.message:
            return "format"
        status = error.status_code
        if status is None or status >= 500 or status in _SERVER_FAULT_STATUSES:
            return ""
        overlong = status == 400 and any(sign in error.message.lower() for sign in OVERLONG)
        return "context" if overlong else "killed"

    async def _cancel(self, *tasks: asyncio.Future[Any]) -> None:
        every = [*tasks, *self._requests, *([self._asking] if self._asking else [])]
        for task in every:
            task.cancel()
        await asyncio.wait(every)
        if not tasks[0].cancelled():
            tasks[0].exception()  # raised by `_result`, unless something else ended the episode

    def _close(self, seconds: float) -> None:
        """Writes the last turns of the episode to the trajectory (air's record of it). Computes the time of
        the model calls, and the time of the agent's commands as the rest of `seconds`, the total time of the
        program that played the agent."""
        if self._turns is None or self._trace is None:
            return
        self._turns.write(all_of_them=True)
        counters, times = self.episode.counters, self.episode.world.times
        counters.model_seconds = sum(call.time.duration for call in self._trace.calls)
        times.exec = max(0.0, seconds - counters.model_seconds - times.grading)
        if self._trace.stop_condition == "max_turns":
            self.episode.why_ended = "turns"

    async def _stopped(self) -> None:
        """Returns when `verifiers` has stopped the episode. The caller then ends the program that plays the
        agent, because `verifiers` rejects its requests from then on, and some programs would repeat them for
        minutes."""
        while self._trace is None or self._trace.stop_condition is None:  # noqa: ASYNC110 — no event
            await asyncio.sleep(WATCH_SECONDS)

    async def _to_model(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Handles a connection from the box on which the program sends one HTTP request to the model.
        Forwards the request and writes the model's response to `writer`, or refuses the request. The request
        continues if the program breaks the connection."""
        try:
            request = await http_requests.read(reader, writer)
        except http_requests.RequestError as error:
            writer.write(http_requests.refusal(str(error)))
            return
        if request is None or self._conversation is None:
            return
        # The request runs to its end even if the program breaks the connection: air must know the model's
        # reply.
        task = asyncio.create_task(self._pass_on(self._conversation, request, writer))
        self._requests.add(task)
        task.add_done_callback(self._requests.discard)
        await asyncio.shield(task)

    async def _pass_on(
        self, conversation: Conversation, request: HttpRequest, writer: asyncio.StreamWriter
    ) -> None:
        """Forwards a request of the program in the box to the model, and the response to the program, if the
        request continues the conversation. Refuses it otherwise."""
        async with self._one_request_at_a_time:
            if self._over or self._model is None:
                return
            if conversation.repeats(request):
                writer.write(conversation.answer)
                return
            body = await asyncio.to_thread(conversation.read, request)
            if isinstance(body, str):
                writer.write(http_requests.refusal(body))
                self._note_refused(conversation, request)
                return
            turns, answer = conversation.trace.num_turns, bytearray()
            head = conversation.first or request
            data = head.anew(json.dumps(body).encode(), _PLACEHOLDER, self._secret)
            try:
                far = await asyncio.open_connection(*self._model, limit=port_relay.PIECE)
            except OSError:
                self._unreachable = True
                raise
            async with port_relay.closing(far):
                far[1].write(data)
                while piece := await far[0].read(port_relay.PIECE):
                    answer += piece
                    # If the program has disconnected, verifiers still adds the reply to its trace.
                    if not writer.is_closing():
                        writer.write(piece)
                        with contextlib.suppress(ConnectionError):
                            await writer.drain()
            if conversation.trace.num_turns > turns:
                await asyncio.to_thread(conversation.replied, request, body, bytes(answer))

    def _note_refused(self, conversation: Conversation, request: HttpRequest) -> None:
        """Counts a refused request to the model. If it equals the refused request before, ends the episode,
        because some programs would repeat the request for minutes. Before the model's first reply, never ends
        the episode."""
        if request.method == "GET":  # programs ask for the list of models, and work without it
            return
        self.episode.counters.refused_requests += 1
        if conversation.first is not None and request.body == self._refused:
            self.episode.why_ended = self.episode.why_ended or "history"
            self._ended.set()
        self._refused = request.body

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Handles one connection of the executable `validate` or `submit` in the box, which sends its own
        name. Grades, and responds with a line with the executable's exit code, then the text that it
        prints."""
        async with asyncio.timeout(SAY_SECONDS):
            try:
                word = (await reader.readline()).decode("ascii", "replace").strip()
            except ValueError:  # the line is too long
                return
        ending = next((known for known in ENDINGS if known == word), None)
        if ending is None:
            writer.write(b"2\nsay validate or submit\n")
            return
        async with self._one_at_a_time:
            if self._over or self._ended.is_set():
                return
            self._asking = asyncio.current_task()
            try:
                answer = await self._grade(ending)
            finally:
                self._asking = None
        if answer is None:
            # Waits until the box is closed, so that the agent is not shown the failure.
            await asyncio.Event().wait()
        else:
            writer.write(answer)

    async def _grade(self, ending: Ending) -> bytes | None:
        """Grades the artefact, the files that the agent hands in. Returns the response to the executable in
        the box (`validate` or `submit`) that asked for it, or None if the grading failed with an error, which
        is stored in `failure`."""
        try:
            with self.episode.performing(ending):
                step = await self.episode.world.step(Action(ending=ending))
            if step.validation is not None and self._turns is not None:
                self._turns.validated(step.validation)
        except Exception as error:  # any error: `play` raises it again; the agent never sees it
            self.failure = error
            self._ended.set()
            return None
        if step.done:
            self.episode.end()
            self._ended.set()
        scored = step.validation is not None and step.validation.score is not None
        code = 0 if scored else 1
        return f"{code}\n{step.observation.text}\n".encode()
