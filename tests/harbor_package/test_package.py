"""Harbor's package agrees with air about folders, digests, trajectories and rewards: `make test-harbor`."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from air import tasks
from air.rewards.normalise import phi_on
from air.tasks.check import read_solvers
from air.tasks.export import harbor
from air.tasks.sources.harbor import folder
from air.trajectories import Recorder, load
from air.trajectories.atif import VERSIONS, to_atif
from tests import once
from tests.harbor.features import FEATURES
from tests.harbor.flaws import CLEAN_TWINS, FLAWED
from tests.harbor.folders import write
from tests.harbor.languages import LANGUAGES
from tests.harbor_package import ours

pytestmark = pytest.mark.harbor
STOCK = Path(__file__).with_name("stock.py")
SECONDS = 3000
EXPORTED = [name for name in tasks.available() if not harbor.refusal(tasks.load(name))]
SHARED = {"shared-verifier"}
"""The tasks that Harbor's lint warns about: their verifier is not separate."""


def stock(*words: str) -> dict[str, dict[str, Any]]:
    """What Harbor's package says of each path, by the path's last part."""
    argv = [os.environ["AIR_HARBOR_PYTHON"], str(STOCK), *words]
    ended = subprocess.run(argv, stdout=subprocess.PIPE, text=True, timeout=SECONDS, check=True)
    lines = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")]
    return {Path(line["path"]).name: line for line in lines}


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Every task of ours that can be exported."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIR_CACHE", str(once.cache(tmp_path_factory)))
        root = tmp_path_factory.mktemp("exported")
        return [harbor.export(tasks.load(name), root) for name in EXPORTED]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The small Harbor tasks of the tests."""
    root = tmp_path_factory.mktemp("small")
    return write((*LANGUAGES, *FEATURES, *CLEAN_TWINS, *FLAWED), root)


def words(paths: Sequence[Path]) -> list[str]:
    return [str(path) for path in paths]


def test_harbor_loads_every_folder_and_computes_our_digest(
    exported: list[Path], small: list[Path]
) -> None:
    said = stock("look", *words([*exported, *small]))
    assert len(said) == len(exported) + len(small)
    assert {name: one["error"] for name, one in said.items() if one["error"]} == {}
    assert {name for name, one in said.items() if one["lint"]} == SHARED
    digests = {path.name: folder.read(path).digest for path in (*exported, *small)}
    assert {name: f"sha256:{one['digest']}" for name, one in said.items()} == digests


def test_harbors_oracle_earns_what_our_best_solver_does(
    exported: list[Path], tmp_path: Path
) -> None:
    said = stock("trials", "oracle", str(tmp_path), *words(exported))
    for name, one in said.items():
        task = tasks.load(name)
        best = read_solvers(task)[-1]
        assert one["error"] == "", name
        assert one["rewards"][f"val_{task.metric}"] == pytest.approx(best.val, abs=best.within)
        assert one["rewards"]["reward"] == phi_on(task, one["rewards"][f"val_{task.metric}"]), name


def test_harbors_nop_earns_what_the_task_states(exported: list[Path], tmp_path: Path) -> None:
    said = stock("trials", "nop", str(tmp_path), *words(exported))
    for name, one in said.items():
        task = tasks.load(name)
        starter = all((task.folder / "starter" / part).exists() for part in task.artefacts)
        expected = 0.0 if starter else task.phi_clip[0]
        assert (one["error"], one["rewards"]["reward"]) == ("", pytest.approx(expected)), name


@pytest.mark.parametrize("agent", ["oracle", "nop"])
async def test_harbor_and_air_pay_the_small_tasks_alike(agent: str, tmp_path: Path) -> None:
    paths = ours.with_image((*LANGUAGES, *CLEAN_TWINS), tmp_path / "tasks")
    paid = await ours.trials(agent, paths, tmp_path / "grades")
    said = await asyncio.to_thread(stock, "trials", agent, str(tmp_path / "trials"), *words(paths))
    assert {name: one["error"] for name, one in said.items() if one["error"]} == {}
    assert {name: one["rewards"]["reward"] for name, one in said.items()} == {
        name: reward for name, (reward, _) in paid.items()
    }


def episode(root: Path) -> Path:
    """A recorded episode with everything that a document can hold, and its trace."""
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
    reply = {"token_ids": [5, 6, 7], "mask": [False, True, True], "logprobs": [-0.5, -0.25]}
    (root / "traces").mkdir()
    trace = {"id": "t1", "nodes": [reply]}
    (root / "traces" / "t1.jsonl").write_text(json.dumps({"traces": [trace]}) + "\n")
    used = {"nodes": [0, 1], "prompt": 10, "completion": 2}
    call = {"id": "a", "name": "look", "arguments": "{}"}
    steps: list[dict[str, Any]] = [
        {"reply": "ls", "action": "ls", "call": {"script": "ls"}, "shown": "x", "tokens": used},
        {"reply": "", "reasoning": "Hm.", "tool_calls": [call], "action": "look", "shown": "y"},
        {"reply": "up", "action": "up", "call": {"answer": "up"}, "reward": 0.5, "done": True},
        {"reply": "what?", "shown": "Format error", "problem": "format", "observation": "long"},
    ]
    with Recorder(root, "e") as recorder:
        recorder.write(
            "start", task="game:x", episode="e", trace="t1", system="S", prompt="P", tools=[tool]
        )
        for turn, step in enumerate(steps, 1):
            recorder.write("step", turn=turn, **step)
        recorder.write("validate", turn=1, score=0.5, phi=0.1, anchor=0.0, delta=0.1)
        recorder.write(
            "end", ok=True, reward=0.1, terms={"delta": 0.1}, trace_file="traces/t1.jsonl"
        )
    return root / "e.jsonl"


def test_harbors_models_accept_every_version_of_our_documents(tmp_path: Path) -> None:
    recorded = load(episode(tmp_path))
    files = []
    for version in VERSIONS:
        file = tmp_path / f"{version}.json"
        file.write_text(json.dumps(to_atif(recorded, tokens=True, version=version)))
        files.append(file)
    broken = tmp_path / "broken.json"
    broken.write_text(json.dumps(to_atif(recorded) | {"reward": 0.1}))
    said = stock("atif", *words([*files, broken]))
    assert "reward" in said.pop("broken.json")["error"]
    assert {name: one["error"] for name, one in said.items()} == {f.name: "" for f in files}
