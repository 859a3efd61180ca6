"""The desk of an episode that another program than our harness plays, as a process in the box.

Two loopback ports of the box, relayed by its guest, so that it needs no network: one leads to the model
endpoint that verifiers hands over, and to nothing else; on the other `validate` and `submit` are
answered, which lie as executables in a folder that the program finds in its PATH. What is said there is
what our own harness would show. A `submit` ends the program; so does a turn that verifiers refuses, and
a failure of ours, which the program never hears of.

Limits: the program and what the agent runs are one user of the box, so an agent can read the endpoint's
secret and end its own program. The first gives it nothing that it has not; the second ends the
episode, which is graded (`killed`). `exec_seconds` does not hold: timeouts of commands are the program's.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import Any, get_args
from urllib.parse import urlsplit

import verifiers.v1 as vf
from verifiers.v1.runtimes import ProgramResult

from air.actions.base import Action, Ending
from air.env.episode import EARLY_SECONDS, OVERLONG, Episode
from air.env.program.transcript import Turns
from air.errors import ConfigError
from air.sandbox.contract.box import Box
from air.sandbox.wire import port_relay

TAUGHT = (
    "\n`validate` and `submit` are commands of the shell, without arguments: the first scores the "
    "artefact as it is, the second scores it and ends the episode. It ends, and is scored, too when "
    "you call no tool, or when turns or time run out."
)
ENDINGS: tuple[Ending, ...] = get_args(Ending)
FOLDER = "/tmp/air"
"""Where the executables lie."""
SAY_SECONDS = 10.0
WATCH_SECONDS = 0.2
"""How often it is looked whether verifiers has stopped the episode."""
_SIGNALLED = 128
_NO_ANSWER = 97
"""With which verifiers' programs end when they cannot reach the model."""
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


class Desk:
    """See the module's docstring. Use once, for one program."""

    def __init__(self, box: Box, episode: Episode) -> None:
        self.box, self.episode = box, episode
        self.failure: Exception | None = None
        """What failed us while the agent waited for its score; the episode is masked."""
        self._trace: vf.Trace[Any, Any, Any] | None = None
        self._turns: Turns | None = None
        self._model: tuple[str, int] | None = None
        self._model_port = 0
        self._one_at_a_time = asyncio.Lock()
        self._asking: asyncio.Task[Any] | None = None
        self._over = False
        self._ended = asyncio.Event()
        self._began = time.monotonic()

    async def open(self) -> None:
        """Opens the ports and lays the executables into the box.

        Raises:
            BoxStartError: a port cannot be opened.
            BoxDiedError: the box is gone.
        """
        self._model_port = await self.box.forward(0, self._to_model)
        port = await self.box.forward(0, self._answer)
        for ending in ENDINGS:
            text = _EXECUTABLE.format(ending=ending, port=port).encode()
            await self.box.write(self.box.path(f"{FOLDER}/{ending}"), text, mode=0o755)

    def begin(self, trace: vf.Trace[Any, Any, Any]) -> None:
        """Learns which trace the program's turns are in, and has its prompt say what there is."""
        self._trace, self._turns = trace, Turns(self.episode, trace)
        self._began = time.monotonic()
        told = str(trace.task.data.prompt) + TAUGHT
        trace.task.data = trace.task.data.model_copy(update={"prompt": told})

    def model_url(self, url: str) -> str:
        """The address, in the box, of the endpoint `url` on this machine.

        Raises:
            ConfigError: it is elsewhere than another one was, or not reached by plain HTTP.
        """
        parts = urlsplit(url)
        target = (parts.hostname or "", parts.port or 80)
        if parts.scheme != "http" or self._model not in (None, target):
            raise ConfigError(
                f"the box cannot be led to {url}: it has one model endpoint, by plain HTTP",
                where="env.agent.harness.id",
                remedy='use harness id = "air", or an interception server on this machine',
            )
        self._model = target
        return parts._replace(netloc=f"127.0.0.1:{self._model_port}").geturl()

    def command(self, argv: list[str]) -> list[str]:
        """The command line of a program that finds the executables."""
        script = 'export PATH="$1:$PATH"; shift; exec "$@"'
        return ["sh", "-c", script, "air", self.box.path(FOLDER), *argv]

    async def play(self, program: Coroutine[Any, Any, ProgramResult]) -> ProgramResult:
        """Runs the program to the episode's end; whatever is being graded then is waited for.

        Raises:
            InfrastructureError: we failed to grade.
        """
        began = time.monotonic()
        running = asyncio.ensure_future(program)
        ended = [asyncio.create_task(self._ended.wait()), asyncio.create_task(self._stopped())]
        try:
            done, _ = await asyncio.wait(
                [running, *ended], timeout=self._left(), return_when=asyncio.FIRST_COMPLETED
            )
            self._over = True
            if not done and self._trace is not None:
                # A validate that is under way is cancelled, and the episode then masked.
                self._trace.stop("agent_timeout")
                return ProgramResult(exit_code=0, stdout="", stderr="")
            async with self._one_at_a_time:
                pass
            if self.failure is not None:
                raise self.failure
            return self._result(running)
        finally:
            self._over = True
            await self._cancel(running, *ended)
            self._close(time.monotonic() - began)

    def _left(self) -> float:
        """Seconds until the episode's time is over."""
        limit = self.episode.config.episode_seconds(self.episode.world.task)
        return max(0.0, limit - EARLY_SECONDS - (time.monotonic() - self._began))

    def _result(self, running: asyncio.Future[ProgramResult]) -> ProgramResult:
        if self._ended.is_set() or not running.done():
            return ProgramResult(exit_code=0, stdout="", stderr="")
        result = running.result()
        if result.exit_code and (why := self._why_dead(result.exit_code)):
            self.episode.why_ended = why
            self.episode.counters.context_ends += why == "context"
            return ProgramResult(exit_code=0, stdout=result.stdout, stderr=result.stderr)
        return result

    def _why_dead(self, code: int) -> str:
        """Why a program ended badly, where the agent is the cause; empty where it may be us."""
        trace = self._trace
        if trace is None or trace.stop_condition is not None:
            return ""
        error = trace.calls[-1].error if trace.calls else None
        refused = error is not None and trace.num_turns and error.status_code == 400
        if error is not None and refused and any(s in error.message.lower() for s in OVERLONG):
            return "context"
        # Nobody but the agent, or the kernel for the memory that it took, signals a process here; and a
        # program whose model answered has no other reason to fail.
        if code > _SIGNALLED or (trace.num_turns and error is None and code != _NO_ANSWER):
            return "killed"
        return ""

    async def _cancel(self, *tasks: asyncio.Future[Any]) -> None:
        every = [*tasks, *([self._asking] if self._asking else [])]
        for task in every:
            task.cancel()
        await asyncio.wait(every)
        if not tasks[0].cancelled():
            tasks[0].exception()  # raised by `_result`, unless something else ended the episode

    def _close(self, seconds: float) -> None:
        """Writes what is left to write of the turns, and where the time went."""
        if self._turns is None or self._trace is None:
            return
        self._turns.write(all_of_them=True)
        counters, times = self.episode.counters, self.episode.world.times
        counters.model_seconds = sum(call.time.duration for call in self._trace.calls)
        times.exec = max(0.0, seconds - counters.model_seconds - times.grading)
        if self._trace.stop_condition == "max_turns":
            self.episode.why_ended = "turns"

    async def _stopped(self) -> None:
        """Returns when verifiers has stopped the episode: some programs ask again for minutes."""
        while self._trace is None or self._trace.stop_condition is None:  # noqa: ASYNC110 — no event
            await asyncio.sleep(WATCH_SECONDS)

    async def _to_model(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._model is not None and not self._over:
            await port_relay.to(*self._model)(reader, writer)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answers one `validate` or `submit`: a line with the exit code, then what is shown."""
        async with asyncio.timeout(SAY_SECONDS):
            try:
                said = (await reader.readline()).decode("ascii", "replace").strip()
            except ValueError:  # a line without end
                return
        ending = next((known for known in ENDINGS if known == said), None)
        if ending is None:
            writer.write(b"2\nsay validate or submit\n")
            return
        async with self._one_at_a_time:
            if self._over or self._ended.is_set():
                return
            self._asking = asyncio.current_task()
            try:
                told = await self._grade(ending)
            finally:
                self._asking = None
        if told is None:
            await asyncio.Event().wait()  # until the box is closed: nothing of it is shown
        else:
            writer.write(told)

    async def _grade(self, ending: Ending) -> bytes | None:
        """What is answered; None where we failed."""
        try:
            step = await self.episode.world.step(Action(ending=ending))
            assert step.validation is not None
            if self._turns is not None:
                self._turns.validated(step.validation)
        except Exception as error:  # whatever it is, `play` raises it; the agent never sees it
            self.failure = error
            self._ended.set()
            return None
        if step.done:
            self.episode.why_ended = "submit"
            self._ended.set()
        code = 1 if step.validation.score is None else 0
        return f"{code}\n{step.observation.text}\n".encode()
