"""Episodes whose code interpreter runs on a real `air serve sandbox`, and on servers that err."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from air.testing import replies
from air.tools import ToolContext, ToolSet, load
from tests.docker.serve.serving import Served, serving
from tests.e2e.conftest import played_by
from tests.e2e.worlds.test_worlds import config, only
from tests.unit.sandbox.fusion_server import answering

pytestmark = [pytest.mark.docker, pytest.mark.xdist_group("serve-tools")]
TOKEN = "a-secret-of-the-test"
PROGRAMS = {
    # the end of the observation
    "print(6 * 7)": "42",
    "import numpy; print(numpy.arange(3).sum())": "3",
    "1 / 0": "ZeroDivisionError: division by zero\n[exit 1]",
    "print('begun', flush=True)\nimport time; time.sleep(600)": (
        "begun\n[the program exceeded its time limit of 10 s]"
    ),
    "x = []\nwhile True: x.append(bytearray(1 << 24))": "]",
    "import os\nos.kill(-1, 9)": "[no output]",
    "import os\nos._exit(3)": "[exit 3]",
    "print('\\ud800')": "[exit 1]",
    "print('x' * 20_000_000)": "x",
}


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    run = f"code-server-tool-{os.getpid()}"
    flags = ("--max-boxes", "2", "--memory-mb", "256", "--queue-seconds", "60")
    with serving(*flags, AIR_RUN=run, AIR_SERVE_TOKEN=TOKEN) as served:
        yield served


async def test_what_programs_do_in_real_boxes_is_the_observation(
    server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIR_TEST_TOKEN", TOKEN)
    settings = {"server": server.url, "key_variable": "AIR_TEST_TOKEN", "seconds": 10}
    tools = ToolSet(load({"name": "code_interpreter", **settings}))
    async with await tools.open(ToolContext(seed=0)) as opened:
        for code, end in PROGRAMS.items():
            result = await opened.call("code_interpreter", {"code": code})
            assert result.observation.endswith(end), (code, result)
            good = not end.endswith("]") or end == "[no output]"
            assert result.status == ("success" if good else "error"), (code, result)


def task(folder: Path, url: str) -> str:
    """A question whose agent has the code interpreter of the server at `url`."""
    (folder / "rows.jsonl").write_text(json.dumps({"question": "6 * 7?", "answer": "42"}) + "\n")
    tool = f'{{name = "code_interpreter", server = "{url}", key_variable = "AIR_TEST_TOKEN"}}'
    lines = ['data = "rows.jsonl"', 'checker = "agent0"', f"tools = [{tool}]", 'split = "all"']
    (folder / "task.toml").write_text("\n".join(lines))
    return f"rows:{folder}/task.toml"


CALL = '<tool_call>{"name": "code_interpreter", "arguments": {"code": "print(6 * 7)"}}</tool_call>'


async def played(folder: Path, url: str) -> Any:
    settings = config(task(folder, url), record_dir=folder / "records")
    async with played_by(replies(CALL, "\\boxed{42}"), settings) as play:
        return await play()


async def test_an_episode_runs_its_code_on_the_server(
    server: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIR_TEST_TOKEN", TOKEN)
    episode = await played(tmp_path, server.url)
    (trace,) = episode.traces
    assert episode.ok, trace.errors
    assert trace.reward > 0
    assert only(tmp_path / "records").steps[0].observation == "42"


@pytest.mark.parametrize("answer", [(500, "oops"), (200, {"status": "SandboxError"}), (401, "")])
async def test_a_server_that_errs_masks_the_episode(
    answer: tuple[int, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIR_TEST_TOKEN", TOKEN)
    with answering(answer, answer) as (address, requests):
        episode = await played(tmp_path, f"http://{address}")
    (trace,) = episode.traces
    assert not episode.ok
    assert trace.has_error
    assert address in trace.errors[0].message
    assert len(requests) == (1 if answer[0] == 401 else 2)
