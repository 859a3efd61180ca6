"""The helper program `kernel`, which the server starts in a sandbox: it runs one Jupyter kernel, and reports
the outputs of the executed code.

Requests and answers are frames (see `programs.frames`). The request `execute` is answered when the code has
ended; before that, each output is sent as a frame `{"run": id, "output": …}`. The request `interrupt`
interrupts the code of one `execute` request, or drops it if it has not begun, and `restart` restarts the
kernel. The image needs `ipykernel`. No import of `air` except `air.sandbox.guest.frames` and the modules
beside this file.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from datetime import UTC, datetime

from jupyter_client.manager import AsyncKernelManager

from air.sandbox.guest.frames import take
from air.serve.e2b.programs.frames import LIMITS, send

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

KINDS = {
    "text/plain": "text",
    "text/html": "html",
    "text/markdown": "markdown",
    "image/svg+xml": "svg",
    "image/png": "png",
    "image/jpeg": "jpeg",
    "application/pdf": "pdf",
    "text/latex": "latex",
    "application/json": "json",
    "application/javascript": "javascript",
}
MOST_BYTES = 16 << 20
_PIECE = 1 << 16


class Kernel:
    """The Jupyter kernel that this program controls. It executes one piece of code at a time. `cwd` is its
    working folder."""

    def __init__(self, cwd: str) -> None:
        self.cwd = cwd
        self.manager: Any = None
        self.client: Any = None
        self.lock = asyncio.Lock()
        self.wanted: set[int] = set()
        """The numbers of the runs (requests to execute code) that have not ended and are not interrupted."""
        self.running: int | None = None
        """The number of the run whose code the kernel executes."""

    async def start(self) -> None:
        self.manager = AsyncKernelManager(kernel_name="python3")
        await self.manager.start_kernel(cwd=self.cwd, stderr=asyncio.subprocess.DEVNULL)
        self.client = self.manager.client()
        self.client.start_channels()
        await self.client.wait_for_ready(timeout=60)

    async def stop(self) -> None:
        if self.manager is not None:
            self.client.stop_channels()
            await self.manager.shutdown_kernel(now=True)
            self.manager = None

    async def execute(self, header: dict[str, Any]) -> dict[str, Any]:
        run = header["run"]
        self.wanted.add(run)
        try:
            async with self.lock:
                if run in self.wanted:
                    await self.execute_next(run, header["source"], header["env"])
        finally:
            self.wanted.discard(run)
        return {}

    async def execute_next(self, number: int, source: str, env: dict[str, str]) -> None:
        """Executes the code of the run `number` in the kernel, which must be idle or not started yet. Does
        not execute it if the run is interrupted before its code begins."""
        if self.manager is None:
            await self.start()
        if env:
            await self.run(_setting(env), lambda output: None, silent=True)
        try:
            if number in self.wanted:
                self.running = number
                await self.run(source, lambda output: say({"run": number, "output": output}))
        finally:
            self.running = None
            if env and self.manager is not None:
                await self.run(_RESTORE, lambda output: None, silent=True)

    async def run(self, code: str, say: Any, silent: bool = False) -> None:
        """Executes `code` in the kernel, and calls `say` with each output, until the code has ended. With
        `silent`, the kernel neither counts this execution nor adds the code to its history."""
        ident = self.client.execute(
            code, silent=silent, store_history=not silent, allow_stdin=False
        )
        while True:
            try:
                message = await self.client.get_iopub_msg(timeout=1)
            except Exception:  # queue.Empty, or a broken channel
                if await self.manager.is_alive():
                    continue
                await self.stop()
                text = "the kernel ended, and what it had in memory is lost"
                say({"type": "error", "name": "KernelDied", "value": text, "traceback": text})
                return
            if message["parent_header"].get("msg_id") != ident:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "execute_input" and self.running not in (None, *self.wanted):
                await self.manager.interrupt_kernel()  # an earlier signal would have had no effect
            if kind == "status" and content["execution_state"] == "idle":
                return
            output = output_of(kind, content)
            if output is not None:
                say(output)

    async def interrupt(self, header: dict[str, Any]) -> dict[str, Any]:
        run = header["run"]
        self.wanted.discard(run)
        if self.manager is not None and run == self.running:
            await self.manager.interrupt_kernel()
        return {}

    async def restart(self, header: dict[str, Any]) -> dict[str, Any]:
        if self.manager is not None:
            await self.manager.interrupt_kernel()
        async with self.lock:
            await self.stop()
            await self.start()
        return {}


_RESTORE = (
    "import os as __air_os; __air_os.environ.clear(); __air_os.environ.update(__air_env); "
    "del __air_os, __air_env"
)


def _setting(env: dict[str, str]) -> str:
    return (
        "import os as __air_os; __air_env = dict(__air_os.environ); "
        f"__air_os.environ.update({env!r}); del __air_os"
    )


def output_of(kind: str, content: dict[str, Any]) -> dict[str, Any] | None:
    """Converts a message of the Jupyter kernel, with the type `kind`, to an output in the form of E2B's code
    interpreter. Returns None if the message is not an output."""
    now = datetime.now(UTC).isoformat()
    if kind == "stream":
        return {"type": content["name"], "text": content["text"], "timestamp": now}
    if kind == "error":
        trace = "\n".join(content["traceback"])
        return {
            "type": "error",
            "name": content["ename"],
            "value": content["evalue"],
            "traceback": trace,
        }
    if kind == "execute_input":
        return {"type": "number_of_executions", "execution_count": content["execution_count"]}
    if kind in ("execute_result", "display_data"):
        data = content["data"]
        result = {name: data[mime] for mime, name in KINDS.items() if mime in data}
        extra = {mime: value for mime, value in data.items() if mime not in KINDS}
        result.update({"extra": extra} if extra else {})
        return {"type": "result", "is_main_result": kind == "execute_result", **result}
    return None


def say(header: dict[str, Any]) -> None:
    """Sends a message to the server. An output that is larger than `MOST_BYTES` (16 MiB) is replaced by an
    error."""
    if "output" in header and len(json.dumps(header)) > MOST_BYTES:
        cut = "the output is larger than 16 MiB"
        error = {"type": "error", "name": "OutputTooLarge", "value": cut, "traceback": cut}
        header = {**header, "output": error}
    send(header)


async def answer(kernel: Kernel, header: dict[str, Any]) -> None:
    try:
        reply = await getattr(kernel, header["op"])(header)
    except Exception as error:  # the client gets whatever went wrong
        reply = {"code": "internal", "message": f"{type(error).__name__}: {error}"}
    send({**reply, "id": header["id"]})


async def run(kernel: Kernel) -> None:
    """Handles the server's requests to the Jupyter kernel, several at the same time, until standard input
    ends. Then stops the kernel."""
    loop, reader = asyncio.get_running_loop(), asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(0, "rb"))
    tasks, buffer = set(), bytearray()
    while data := await reader.read(_PIECE):
        buffer += data
        while (request := take(buffer, LIMITS)) is not None:
            task = asyncio.create_task(answer(kernel, request[0]))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
    await kernel.stop()


def main() -> None:
    """Runs the helper program, which handles requests to one Jupyter kernel until standard input ends. The
    kernel's working folder is the first command-line argument."""
    os.umask(0o022)
    asyncio.run(run(Kernel(sys.argv[1])))
