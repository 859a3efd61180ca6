"""Runs notebook cells in a new Jupyter kernel. The server starts this program inside a box (container), whose
image must have jupyter_client.

    python3 kernel_driver.py REQUEST.json RESULT.json

The object in REQUEST has `cells` (the source code of each cell), `cell_timeout` and `total_timeout` (both in
seconds; a `cell_timeout` of 0 is no limit), and `most_output` (the maximum number of characters that are kept
of each output stream of a cell). RESULT is written again after every cell. It has `cells`, the outputs of
each cell so far, and `ended`: `all` (all cells so far have ended), `time` (the total time is over, or a cell
did not end after it was interrupted) or `died` (the kernel has ended). If no kernel starts, the exit status
is `NOT_STARTED`. The program imports nothing of air. The server also imports this module, to get
`NOT_STARTED`; so jupyter_client, which the server may lack, must not be imported at the top.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import time
import traceback
from typing import Any

_POLL_SECONDS = 0.5
_INTERRUPT_SECONDS = 3.0
READY_SECONDS = 150
NOT_STARTED = 75
"""The exit status if the Jupyter kernel did not start, so that no cell has run."""


def main(request_path: str, result_path: str) -> None:
    """Runs the notebook cells in the request file one after another, and writes the result file after each.
    Stops early if the total time is over, a cell does not end after it was interrupted, or the kernel has
    ended."""
    with open(request_path, encoding="utf-8") as file:  # noqa: PTH123 — any Python of an image
        request = json.load(file)
    manager, client = _started()
    total = time.monotonic() + request["total_timeout"]
    cells: list[dict[str, Any]] = []
    ended = "all"
    _save(result_path, cells, ended)  # there may be no cell
    for code in request["cells"]:
        limit = total
        if request["cell_timeout"] > 0:
            limit = min(total, time.monotonic() + request["cell_timeout"])
        cell = Cell(request["most_output"])
        cells.append(cell.result)
        ended = _run(manager, client, code, cell, limit)
        if ended == "all" and time.monotonic() >= total:
            ended = "time"
        _save(result_path, cells, ended)
        if ended != "all":
            break
    manager.shutdown_kernel(now=True)
    client.stop_channels()


def _started() -> tuple[Any, Any]:
    """Starts a Jupyter kernel, and returns its manager and its client (objects of jupyter_client). If the
    kernel does not start, ends this program with the exit status `NOT_STARTED`."""
    try:
        from jupyter_client.manager import KernelManager

        manager = KernelManager(kernel_name="python3")
        manager.start_kernel()
        client = manager.client()
        client.start_channels()
        client.wait_for_ready(timeout=READY_SECONDS)
    except Exception:  # of any kind: the image's jupyter_client and its kernel raise what they like
        traceback.print_exc()
        # Not sys.exit: threads of the client may still run.
        sys.stderr.flush()
        os._exit(NOT_STARTED)
    return manager, client


class Cell:
    """Collects the outputs of one notebook cell while it runs: printed text, displayed results and
    exceptions. At most `most` characters of each output stream are kept."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.result: dict[str, Any] = {"stdout": "", "stderr": "", "display": [], "error": []}

    def add(self, kind: str, content: dict[str, Any]) -> None:
        """Adds one message from the Jupyter kernel, such as printed text, to the cell's outputs. `kind` is
        the message's type, for instance `stream`. Messages that are not outputs are ignored."""
        if kind == "stream":
            name = content["name"]
            room = self._most - len(self.result[name])
            self.result[name] += content["text"][: max(0, room)]
        elif kind in ("display_data", "execute_result"):
            self.result["display"].append(content["data"])
        elif kind == "error":
            names = ("ename", "evalue", "traceback")
            self.result["error"].append({name: content[name] for name in names})

    def fail(self, name: str, text: str) -> None:
        """Adds an error that this program has found, such as the end of the kernel, to the exceptions of the
        cell."""
        self.result["error"].append({"ename": name, "evalue": text, "traceback": []})


def _run(manager: Any, client: Any, code: str, cell: Cell, limit: float) -> str:
    """Runs one notebook cell, and interrupts it at the monotonic time `limit`. Returns `all` if the cell has
    ended, interrupted or not; `time` if it did not end soon after the interruption; `died` if the kernel has
    ended."""
    ident = client.execute(code, store_history=True, allow_stdin=False)
    interrupted = False
    while True:
        try:
            message = client.get_iopub_msg(timeout=_POLL_SECONDS)
        except queue.Empty:
            message = None
        if message is not None and message["parent_header"].get("msg_id") == ident:
            kind, content = message["header"]["msg_type"], message["content"]
            if kind == "status" and content["execution_state"] == "idle":
                return "all"
            cell.add(kind, content)
        if message is None and not manager.is_alive():
            cell.fail("DeadKernelError", "the kernel ended")
            return "died"
        now = time.monotonic()
        if now >= limit and not interrupted:
            cell.fail("TimeoutError", "the cell exceeded its time limit")
            manager.interrupt_kernel()
            interrupted = True
        elif interrupted and now >= limit + _INTERRUPT_SECONDS:
            return "time"


def _save(path: str, cells: list[dict[str, Any]], ended: str) -> None:
    with open(f"{path}.new", "w", encoding="utf-8") as file:  # noqa: PTH123
        json.dump({"cells": cells, "ended": ended}, file)
    os.replace(f"{path}.new", path)  # noqa: PTH105


if __name__ == "__main__":
    main(*sys.argv[1:])
