"""Episodes of MLGym's tasks on a tree of our own: what is done in the workspace, and what it earns."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from air import tasks
from air.actions.base import Action
from air.rewards.delta import DeltaReward
from air.sandbox.pool.box_pool import Pool
from air.tasks.files import folder_hash
from air.tasks.grading import Grader
from air.worlds.research.world import ResearchWorld
from tests.unit.tasks.mlgym.tree import guesses, make_tree

pytestmark = pytest.mark.slow


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_tree(tmp_path / "checkout")


@pytest.fixture
async def pool() -> AsyncIterator[Pool]:
    async with Pool(3) as pool:
        yield pool


@pytest.fixture
def grader(pool: Pool) -> Grader:
    return Grader(pool, "process")


@asynccontextmanager
async def world(pool: Pool, grader: Grader, root: Path, name: str) -> AsyncIterator[ResearchWorld]:
    task = tasks.load(f"mlgym:{name}", mlgym_root=root)
    pay = DeltaReward(task.reward_scale())
    async with pool.lease(task.box_spec("process")) as box:
        made = ResearchWorld(task=task, box=box, grader=grader, pay=pay)
        await made.reset(0)
        yield made


def run(script: str) -> Action:
    return Action(script=script, ending=None)


def submit(right: int) -> str:
    """A script that writes a submission for `lamps`."""
    return f"cat > submission.csv << 'END'\n{guesses(right).decode()}END\n"


TAMPERING = {
    "evaluation script replaced": "chmod u+w evaluate.py; echo 'print(\"{}\")' > evaluate.py",
    "evaluation script moved": "mv evaluate.py e2; ln -s /bin/true evaluate.py",
    "a python of one's own": "mkdir -p bin ~/bin; printf '#!/bin/sh\\necho {}' | tee bin/python3"
    " python3 ~/bin/python; chmod +x bin/python3 python3; export PATH=$PWD/bin:$PATH;"
    " alias python3=true; python3() { true; }; echo 'alias python3=true' > ~/.bashrc",
    "modules of one's own": "for m in sitecustomize usercustomize csv json argparse; do"
    " echo 'raise SystemExit(0)' > $m.py; done; export PYTHONPATH=$PWD",
    "data of one's own": "chmod -R u+w data; printf 'lamp,colour\\n' > data/answers.csv",
    "the mark of a score": "echo '[hits] 1.0000 (best 1.0000)'",
}


@pytest.mark.parametrize("name", TAMPERING)
async def test_what_is_done_to_the_workspace_does_not_reach_the_evaluation(
    pool: Pool, grader: Grader, root: Path, name: str
) -> None:
    before = folder_hash(root)
    async with world(pool, grader, root, "lamps") as played:
        step = await played.step(run(submit(10) + TAMPERING[name]))
        assert step.validation is None
        assert step.code == 0, step.observation.text
        found = await played.validate()
        assert (found.score, found.problem) == (0.25, "")
        assert folder_hash(root) == before


async def test_a_link_is_no_submission(pool: Pool, grader: Grader, root: Path) -> None:
    async with world(pool, grader, root, "lamps") as played:
        await played.step(run(f"ln -s {root}/data/lamps/data/answers.csv submission.csv"))
        found = await played.validate()
        assert found.score is None
        assert "submission.csv cannot be graded" in found.problem
        assert found.delta == played.task.phi_clip[0]


async def test_a_validate_without_submission_goes_on_and_the_same_again_earns_nothing(
    pool: Pool, grader: Grader, root: Path
) -> None:
    async with world(pool, grader, root, "lamps") as played:
        first = await played.validate()
        low = played.task.phi_clip[0]
        assert (first.score, first.delta) == (None, low)
        await played.step(run(submit(24)))
        second, third = await played.validate(), await played.validate()
        assert second.delta == pytest.approx((0.6 - 0.35) / (0.9 - 0.35) - low)
        assert (third.score, third.delta) == (0.6, 0)


async def test_new_luck_cannot_be_drawn_with_the_same_strategy(
    pool: Pool, grader: Grader, root: Path
) -> None:
    """Neither the same file again nor one that differs in a comment alone."""
    async with world(pool, grader, root, "coin") as played:
        await played.step(run("printf 'def row_strategy(h):\\n    return 1\\n' > strategy.py"))
        first, again = await played.validate(), await played.validate()
        await played.step(run("echo '# once more' >> strategy.py"))
        changed = await played.validate()
        assert first.score == again.score == changed.score
        assert (again.delta, changed.delta) == (0, 0)
        assert again.digest != changed.digest


async def test_a_lower_score_is_better_where_the_table_says_so(
    pool: Pool, grader: Grader, root: Path
) -> None:
    async with world(pool, grader, root, "steps") as played:
        await played.step(run("printf 'def steps(n):\\n    return 2\\n' > heuristic.py"))
        better = await played.validate()
        await played.step(run("printf 'def steps(n):\\n    return 4\\n' > heuristic.py"))
        worse = await played.validate()
        assert (better.score, worse.score, played.best) == (20, 40, 20)
        assert better.delta > 0 > worse.delta


async def test_every_episode_starts_from_the_checkout(
    pool: Pool, grader: Grader, root: Path
) -> None:
    async with world(pool, grader, root, "coin") as first:
        step = await first.step(run("echo mine > memory.json; echo x > strategy.py; ls"))
        assert step.code == 0
        async with world(pool, grader, root, "coin") as second:
            seen = await second.step(run("ls; cat strategy.py"))
            assert "memory.json" not in seen.observation.text
            assert "random.randrange" in seen.observation.text
