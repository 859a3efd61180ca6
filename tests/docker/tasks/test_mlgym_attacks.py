"""What an agent could try while one of MLGym's evaluations runs, in real containers."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from air import tasks
from air.errors import ArtefactError
from air.sandbox.pool.box_pool import Pool
from air.tasks.artefact import Artefact
from air.tasks.grading import Grade, Grader
from tests.docker.tasks.attempts import all_of, refused
from tests.unit.tasks.mlgym.tree import checkpoints, guesses, make_tree

pytestmark = pytest.mark.docker


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIR_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_tree(tmp_path / "checkout")


@pytest.fixture
async def pool() -> AsyncIterator[Pool]:
    async with Pool(2) as pool:
        yield pool


@pytest.fixture
def grader(pool: Pool) -> Grader:
    return Grader(pool, "docker")


async def grade(grader: Grader, root: Path, name: str, files: dict[str, bytes]) -> Grade:
    task = tasks.load(f"mlgym:{name}", mlgym_root=root)
    return await grader.grade(task, Artefact(files), split="val")


async def fault(grader: Grader, root: Path, name: str, files: dict[str, bytes]) -> str:
    with pytest.raises(ArtefactError) as caught:
        await grade(grader, root, name, files)
    return str(caught.value)


SPYING = {
    "what the grader is told": "open('/grader/how.json')",
    "the grader's folder": "os.listdir('/grader')",
    "the opponent's luck": "open(first('/workspace/evaluation-*/settings.json'))",
    "the script's workspace": "os.listdir(first('/workspace/evaluation-*/workspace'))",
    "the script's environment": "open('/proc/%d/environ' % os.getppid(), 'rb').read()",
    "the end of the script": "os.kill(os.getppid(), 9)",
    "another file to play": "open(os.path.join(sys.path[0], 'x.py'), 'w')",
    "a folder that all share": "open('/tmp/x', 'w')",
    "a process": "os.fork()",
    "the report": "os.listdir(first('/workspace/evaluation-*/report'))",
    "root": "os.setuid(0)",
    "a host service": "socket.create_connection(('10.0.0.1', 80), 2)",
}
FIRST = """import glob, os, socket, sys
def first(pattern):
    for path in glob.glob(pattern):
        return path
    raise PermissionError(f"nothing is seen of {pattern}")
"""


async def test_a_strategy_reaches_nothing_of_the_evaluation(grader: Grader, root: Path) -> None:
    source = f"{FIRST}{all_of(SPYING)}\ndef row_strategy(history): return 1\n"
    said = await fault(grader, root, "coin", {"strategy.py": source.encode()})
    assert refused(said) == set(SPYING), said


async def test_no_command_line_tells_a_strategy_the_split(grader: Grader, root: Path) -> None:
    source = "print(open('/proc/1/cmdline').read())\n"
    said = await fault(grader, root, "coin", {"strategy.py": source.encode()})
    assert "PermissionError" in said


async def test_a_strategy_may_use_numpy(grader: Grader, root: Path) -> None:
    source = b"import numpy as np\ndef row_strategy(history): return np.int64(1)\n"
    found = await grade(grader, root, "coin", {"strategy.py": source})
    assert found.score == pytest.approx(0.7, abs=0.05)


async def test_a_strategy_that_leaves_after_printing_metrics_earns_nothing(
    grader: Grader, root: Path
) -> None:
    source = b"import os\nos.write(1, b'{\"Score\": 2.0}')\nos._exit(0)\n"
    assert "ended before" in await fault(grader, root, "coin", {"strategy.py": source})


EATING = {
    "memory": ("held = bytearray(4 << 30)", "strategy.py failed: MemoryError"),
    "processes": ("os.fork()", "strategy.py failed: Exception"),
    "nothing, after closed descriptors": (
        "os.closerange(0, 64); time.sleep(600)",
        "ended before it was done",
    ),
}


@pytest.mark.parametrize("name", EATING)
async def test_a_strategy_is_limited(grader: Grader, root: Path, name: str) -> None:
    line, expected = EATING[name]
    source = f"import os, time\ndef row_strategy(history):\n    {line}\n"
    assert expected in await fault(grader, root, "coin", {"strategy.py": source.encode()})


async def test_a_strategy_that_spins_is_stopped(grader: Grader, root: Path) -> None:
    """By its processor time, a tenth of the time limit; on a busy machine the time limit may come first."""
    config = root / "configs/tasks/coin.yaml"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"training_timeout": 10}))
    said = await fault(
        grader, root, "coin", {"strategy.py": b"def row_strategy(history):\n    while True: pass\n"}
    )
    assert said in (
        "strategy.py used more than 1 s of processor time",
        "strategy.py took longer than 10 s",
    )


IN_THE_SCRIPT = {
    "what the grader is told": "open('/grader/how.json')",
    "the script itself": "open('evaluate.py', 'a')",
    "the programs around it": "open('../programs/evaluator.py', 'a')",
    "the result": "open('/grader/result.json', 'w')",
    "the grader's environment": "open('/proc/%d/environ' % os.getppid(), 'rb').read()",
    "the end of the grader": "os.kill(os.getppid(), 9)",
}


async def test_code_in_the_script_is_still_a_second_user(grader: Grader, root: Path) -> None:
    source = f"import os\n{all_of(IN_THE_SCRIPT)}\ndef steps(n): return 0\n"
    said = await fault(grader, root, "steps", {"heuristic.py": source.encode()})
    assert refused(said) == set(IN_THE_SCRIPT), said


async def test_what_code_leaves_behind_does_not_trouble_the_grader(
    grader: Grader, root: Path
) -> None:
    """Folders that root without capabilities cannot remove, and a child that goes on."""
    source = (
        "import os, time\nos.makedirs(os.environ['HOME'] + '/mine/deep', 0o700)\n"
        "if os.fork() == 0:\n    os.setsid(); time.sleep(600)\ndef steps(n): return 1\n"
    )
    found = await grade(grader, root, "steps", {"heuristic.py": source.encode()})
    assert found.score == 10
    assert found.seconds < 60


async def test_a_model_is_loaded_by_a_second_user(grader: Grader, root: Path) -> None:
    files = checkpoints([2.0] * 5)
    assert (await grade(grader, root, "policy", files)).score == 2.0
    files["src/net.py"] = b"import os\ndef value(weights): return os.getuid()\n"
    assert (await grade(grader, root, "policy", files)).score == 65533


async def test_submissions_are_read_by_an_ordinary_user(grader: Grader, root: Path) -> None:
    assert (await grade(grader, root, "lamps", {"submission.csv": guesses(20)})).score == 0.5
    spec = tasks.load("mlgym:lamps", mlgym_root=root).grader_spec("docker")
    assert not spec.second_user


EVERYWHERE = "find / \\( -path /proc -o -path /sys \\) -prune -o"


async def test_no_answer_is_in_the_agents_box(pool: Pool, root: Path) -> None:
    """Neither by name nor by content; and there is nobody to ask over the network."""
    (root / "data/lamps/data/answers.csv").write_text("lamp,colour\n1,kleinblau\n")
    task = tasks.load("mlgym:lamps", mlgym_root=root)
    async with pool.lease(task.box_spec("docker")) as box:
        await tasks.stage(task, box)
        named = await box.exec(f"{EVERYWHERE} -name '*.csv' -print 2>/dev/null | sort", timeout=60)
        held = await box.exec(f"{EVERYWHERE} -type f -exec grep -l kleinblau {{}} +", timeout=60)
        others = await box.exec("ls /grader; ls /sys/class/net", timeout=60)
    shown = [line for line in named.text.split() if "dist-packages" not in line]
    assert shown == ["/workspace/data/test.csv", "/workspace/data/train.csv"]
    assert held.stdout == b""
    assert others.stdout == b"lo\n"
    assert b"cannot access '/grader'" in others.stderr
