"""Handles `/run_jupyter`: runs notebook cells in a Jupyter kernel inside a box (container)."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Annotated, Literal

from pydantic import BaseModel, FailFast, ValidationError

from air.errors import BoxFileError
from air.sandbox.contract.box import Box
from air.serve.fusion.kernel_driver import NOT_STARTED
from air.serve.fusion.messages import Cell, RunJupyterAnswer, RunJupyterRequest
from air.serve.fusion.programs import (
    OUTPUT_BYTES,
    BadRequest,
    Programs,
    exec_first,
    fetch_all,
    result_of,
)

FOLDER = "/tmp/air-kernel"
RESULT_BYTES = 4 * OUTPUT_BYTES
"""The maximum size in bytes of the file with the cells' outputs that the server reads from the box. The limit
is needed because a cell can overwrite this file, and parsing it needs many times its size as memory."""
START_SECONDS = 180.0
"""Seconds that the kernel may take to start and to end, in addition to the request's time limit for the
cells."""
CHECK = 'python3 -c "import ipykernel, jupyter_client"'


class _Result(BaseModel):
    cells: Annotated[list[Cell], FailFast()]
    ended: Literal["all", "time", "died"]


class Notebooks:
    """Runs the notebook cells of requests to `/run_jupyter`, each request in a box (container) of its own."""

    def __init__(self, programs: Programs) -> None:
        self._programs = programs
        self.available = False
        """Whether the server's container image has a Jupyter kernel."""

    async def look(self, box: Box) -> None:
        """Checks whether the image of `box` (a container) has a Jupyter kernel, and sets `available`."""
        self.available = (await box.exec(CHECK, timeout=60)).ok

    async def run(self, request: RunJupyterRequest) -> RunJupyterAnswer:
        """Runs the notebook cells of a request, and returns their outputs. Raises BadRequest if the server's
        image has no Jupyter kernel, and also the errors of `Programs.run`."""
        if not self.available:
            raise BadRequest("the server's image has no Jupyter kernel", "kernel")
        self._programs.check_seconds(request.total_timeout, "total_timeout")

        async def work(box: Box) -> RunJupyterAnswer:
            return await _run(box, request)

        return await self._programs.answered(
            self._programs.spec(request.memory_limit_MB),
            asked=request.total_timeout,
            needed=request.total_timeout,
            work=work,
            failed=RunJupyterAnswer,
        )


async def _run(box: Box, request: RunJupyterRequest) -> RunJupyterAnswer:
    driver, asked, answer = (f"{FOLDER}/{name}" for name in ("driver.py", "request", "result"))
    fields = request.model_dump(include={"cells", "cell_timeout", "total_timeout"})
    program = files("air.serve.fusion").joinpath("kernel_driver.py").read_bytes()
    own = {driver: program, asked: json.dumps(fields | {"most_output": OUTPUT_BYTES}).encode()}
    seconds = request.total_timeout + START_SECONDS
    command = ["python3", driver, asked, answer]
    outcome = await exec_first(box, request, own, command, timeout=seconds)
    ran = result_of(outcome, first=True)
    # A file of the request, such as a Python module, may run before the kernel and exit with any status.
    if ran.status == "Error" or (ran.return_code == NOT_STARTED and not request.files):
        return RunJupyterAnswer(status="SandboxError", message=ran.stderr or "", driver=ran)
    try:
        result = _Result.model_validate_json(await box.read(answer, max_bytes=RESULT_BYTES))
    except (BoxFileError, ValidationError):  # a cell removed or overwrote the result
        return RunJupyterAnswer(status="Failed", driver=ran)
    if result.ended == "time":
        ran.status, ran.return_code = "TimeLimitExceeded", None
    succeeded = result.ended == "all" and ran.status == "Finished" and ran.return_code == 0
    return RunJupyterAnswer(
        status="Success" if succeeded else "Failed",
        driver=ran,
        cells=result.cells,
        files=await fetch_all(box, request.fetch_files),
    )
