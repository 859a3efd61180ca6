"""`/run_jupyter`: notebook cells in a real Jupyter kernel."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import sandbox_fusion
from sandbox_fusion import RunJupyterRequest, RunStatus

from tests.docker.serve.serving import Served, serving

# Not marked `docker`: where Docker is required, these images are still not.
pytestmark = pytest.mark.full
IMAGES = ("air-code", "air-e2b")
"""The images with a Jupyter kernel. The first one that is built is used."""
SECONDS = 300


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    from air.sandbox.docker import air_images

    ready = [name for name in IMAGES if not air_images.why_not_ready(name)]
    if not ready:
        pytest.skip("no image with a kernel is built: air images build code")
    with serving("--max-boxes", "2", "--queue-seconds", "600", image=ready[0]) as served:
        sandbox_fusion.set_endpoint(served.url)
        yield served


def run(server: Served, *cells: str, **more: Any) -> dict[str, Any]:
    """The answer to a request with these cells."""
    body = {"cells": cells, "total_timeout": SECONDS} | more
    answer = httpx.post(f"{server.url}/run_jupyter", json=body, timeout=1500)
    assert answer.status_code == 200, answer.text
    result: dict[str, Any] = answer.json()
    return result


def test_a_kernel_runs_cells(server: Served) -> None:
    data = base64.b64encode(b"20").decode()
    request = RunJupyterRequest(
        cells=[
            "a = int(open('n').read()); import sys; sys.stderr.write('warned')",
            "1 / 0",
            "print('out'); open('made', 'w').write('made'); a + 22",
            "import matplotlib.pyplot as p; p.plot([1, 2]); p.show()",
        ],
        files={"n": data},
        fetch_files=["made"],
        total_timeout=SECONDS,
    )
    answer = sandbox_fusion.run_jupyter(request)
    assert (answer.status, answer.message) == (RunStatus.Success, "")
    first, failed, third, plot = answer.cells
    assert first.stderr == "warned"
    assert failed.error[0]["ename"] == "ZeroDivisionError"
    assert third.stdout == "out\n"
    assert third.display[0]["text/plain"] == "42"
    assert "image/png" in plot.display[0]
    assert base64.b64decode(answer.files["made"]) == b"made"


def test_cells_over_their_time_end_and_the_others_stay(server: Served) -> None:
    cells = ["print('kept')", "import time; time.sleep(3600)", "print('next')"]
    body = {"cells": cells, "cell_timeout": 5, "total_timeout": SECONDS}
    answer = httpx.post(f"{server.url}/run_jupyter", json=body, timeout=1500).json()
    assert answer["status"] == "Success"
    assert [cell["stdout"] for cell in answer["cells"]] == ["kept\n", "", "next\n"]
    assert answer["cells"][1]["error"][0]["ename"] == "TimeoutError"
    body = {"cells": cells, "total_timeout": 10}
    answer = httpx.post(f"{server.url}/run_jupyter", json=body, timeout=1500).json()
    assert answer["status"] == "Failed"
    assert answer["driver"]["status"] == "TimeLimitExceeded"
    assert answer["cells"][0]["stdout"] == "kept\n"


def test_a_kernel_that_dies_is_a_failed_run(server: Served) -> None:
    body = {"cells": ["print(1, flush=True)", "import os; os._exit(0)", "print(2)"]}
    answer = httpx.post(f"{server.url}/run_jupyter", json=body, timeout=1500).json()
    assert answer["status"] == "Failed"
    assert answer["cells"][1]["error"][0]["ename"] == "DeadKernelError"
    assert len(answer["cells"]) == 2


@pytest.mark.parametrize(
    "code",
    [
        "import os; os.unlink('/tmp/air-kernel/result'); os.kill(os.getppid(), 9)",
        "import os; os.kill(os.getppid(), 19)\n"
        "text = '{\"ended\": \"all\", \"cells\": [' + '{},' * 1_000_000 + '{}]}'\n"
        "open('/tmp/air-kernel/result', 'w').write(text); os.kill(os.getppid(), 9)",
        "import os; os.kill(os.getppid(), 19)\n"
        "f = open('/tmp/air-kernel/result', 'wb'); f.write(bytes(40 << 20)); os.kill(os.getppid(), 9)",
    ],
    ids=["no result", "many faults", "too large"],
)
def test_a_cell_that_attacks_its_driver_is_a_failed_run(server: Served, code: str) -> None:
    answer = httpx.post(f"{server.url}/run_jupyter", json={"cells": [code]}, timeout=1500).json()
    assert (answer["status"], answer["cells"]) == ("Failed", []), answer
    assert answer["driver"]["return_code"] == 137


def test_the_memory_of_a_notebook_is_limited(server: Served) -> None:
    # The writable folders of a box lie in memory and add 640 MiB to the limit.
    large = "x = b'x' * (1536 << 20); print('had it')"
    answer = run(server, large)
    assert (answer["status"], answer["cells"][0]["stdout"]) == ("Success", "had it\n"), answer
    answer = run(server, "print('before')", large, memory_limit_MB=512)
    assert answer["status"] == "Failed", answer
    assert "had it" not in str(answer["cells"])
    again = run(server, "40 + 2", memory_limit_MB=512)
    assert again["cells"][0]["display"][0]["text/plain"] == "42"
    body = {"cells": [], "memory_limit_MB": 10**6}
    refused = httpx.post(f"{server.url}/run_jupyter", json=body, timeout=1500)
    assert refused.status_code == 422
    assert "--memory-mb" in refused.text


def test_files_that_are_null_are_skipped(server: Served) -> None:
    files = {"none": None, "n": base64.b64encode(b"20").decode()}
    cells = ["import os; sorted(os.listdir('.'))", "int(open('n').read()) + 22"]
    answer = run(server, *cells, files=files, fetch_files=["none", "n"])
    assert answer["status"] == "Success", answer
    shown = [cell["display"][0]["text/plain"] for cell in answer["cells"]]
    assert "'n'" in shown[0]
    assert "none" not in shown[0]
    assert shown[1] == "42"
    assert answer["files"] == {"n": files["n"]}
