"""Harbor tasks in real containers: what earns a reward, and what cannot."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest
import verifiers.v1 as vf

from air import tasks
from air.actions.base import Action
from air.env.config import AirTasksetConfig, ResearchEnvConfig
from air.errors import BrokenTaskError
from air.rewards.delta import DeltaReward
from air.sandbox import open_box
from air.sandbox.contract.box import BoxSpec, OpenBox
from air.sandbox.pool.box_pool import Pool
from air.tasks.grading import NOT_GRADED, Grader
from air.tasks.sources.harbor import verifier
from air.tasks.sources.harbor.settings import HarborSettings
from air.testing import replies
from air.worlds.research.world import ResearchWorld
from tests.e2e.conftest import played_by

pytestmark = pytest.mark.docker
HEAD = """\
[environment]
docker_image = "air-base"
workdir = "/workspace"
network_mode = "no-network"
memory_mb = 256
"""
TEST = """\
#!/bin/sh
if [ "$(cat answer.txt 2>/dev/null)" = 42 ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
"""
Make = Callable[..., str]
Play = Callable[..., AbstractAsyncContextManager[ResearchWorld]]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    def task(
        test: str = TEST,
        top: str = 'artifacts = ["answer.txt"]\n',
        more: str = "",
        solution: str = "",
    ) -> str:
        folder = tmp_path / "task"
        if solution:
            (folder / "solution").mkdir(parents=True)
            (folder / "solution" / "solve.sh").write_text(solution)
        (folder / "tests").mkdir(parents=True)
        (folder / "task.toml").write_text(f"{top}{HEAD}{more}")
        (folder / "instruction.md").write_text("Write 42 into answer.txt.\n")
        (folder / "tests" / "test.sh").write_text(test)
        (folder / "tests" / "expected.txt").write_text("42")
        return "harbor:task"

    return task


@pytest.fixture
def play(tmp_path: Path) -> Play:
    @asynccontextmanager
    async def world(task_id: str, **settings: object) -> AsyncIterator[ResearchWorld]:
        harbor = HarborSettings(root=tmp_path, **settings)  # type: ignore[arg-type]
        task = tasks.load(task_id, harbor=harbor)
        async with (
            Pool(1) as boxes,
            Pool(1, nested=True) as graders,
            boxes.lease(task.box_spec("docker")) as box,
        ):
            grader = Grader(graders, "docker", tmp_path / "grades")
            pay = DeltaReward(task.reward_scale())
            one = ResearchWorld(task, box, grader, pay, max_validates=0)
            await one.reset(0)
            yield one

    return world


async def submit(world: ResearchWorld, script: str) -> ResearchWorld:
    step = await world.step(Action(script=script, ending="submit"))
    assert step.done
    await world.finish()
    return world


async def test_the_solution_earns_one_and_nothing_earns_nothing(make: Make, play: Play) -> None:
    task = make()
    async with play(task) as world:
        step = await world.step(
            Action(script="ls / /logs; echo 42 > answer.txt", ending="validate")
        )
        assert "not scored" in step.observation.text  # a Harbor task is graded once
        assert "tests" not in step.observation.text
        assert (await submit(world, "true")).reward == 1.0
    async with play(task) as world:
        await world.finish()
        assert world.reward == 0.0
        assert [v.score for v in world.validations] == [0.0]


async def test_nothing_that_an_agent_plants_or_leaves_running_is_paid(
    make: Make, play: Play
) -> None:
    script = """
mkdir -p /tests /logs/verifier
printf '#!/bin/sh\\necho 1 > /logs/verifier/reward.txt' > /tests/test.sh; chmod +x /tests/test.sh
(while :; do echo '{"reward": 1}' > /logs/verifier/reward.json; sleep 0.05; done) >/dev/null 2>&1 &
printf '#!/bin/sh\\necho 42' > /usr/local/bin/cat; chmod +x /usr/local/bin/cat
echo 41 > answer.txt
"""
    async with play(make()) as world:
        assert (await submit(world, script)).reward == 0.0


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        ("ln -s /tests/expected.txt answer.txt", "link"),
        ("mkdir d; ln -s .. d/up; ln -s d/up/../tests/expected.txt answer.txt", "link"),
        ("mkfifo answer.txt", "neither a file"),
        ("truncate -s 200M answer.txt", "too large"),
    ],
)
async def test_what_cannot_be_handed_in_is_the_agents_fault(
    make: Make, play: Play, script: str, problem: str
) -> None:
    async with play(make()) as world:
        await submit(world, script)
        assert problem in world.validations[0].problem
        assert world.reward == 0.0


async def test_work_that_breaks_the_tests_is_the_agents_fault(make: Make, play: Play) -> None:
    test = "#!/bin/sh\n[ -e answer.txt ] || echo 0 > /logs/verifier/reward.txt\n"
    async with play(make(test), range=(-1.0, 1.0)) as world:
        await submit(world, "echo x > answer.txt")
        [validation] = world.validations
        assert (validation.problem, world.reward) == (NOT_GRADED, -1.0)
        assert "wrote neither" in validation.fault


async def test_tests_that_never_write_a_reward_are_a_broken_task(make: Make, play: Play) -> None:
    broken = "#!/bin/sh\necho no; exit 1\n"
    async with play(make(broken, solution="echo 42 > answer.txt\n")) as world:
        with pytest.raises(BrokenTaskError, match=r"did nothing.*valid reward"):
            await submit(world, "echo 42 > answer.txt")


ONLY_IF_SOLVED = """\
#!/bin/sh
set -e
[ "$(cat answer.txt)" = 42 ]
echo 1 > /logs/verifier/reward.txt
"""


BAD = "echo 41 > answer.txt"
"""The path after the tests' silence does not depend on the work, nor on where they ran: each value of both
is played once, and all pairs with AIR_FULL=1."""


@pytest.mark.parametrize(
    ("script", "verifier"),
    [
        ("true", "separate"),
        (BAD, "shared"),
        pytest.param("true", "shared", marks=pytest.mark.full),
        pytest.param(BAD, "separate", marks=pytest.mark.full),
    ],
)
async def test_tests_that_write_a_reward_only_for_good_work_pay_the_lowest_for_other_work(
    make: Make, play: Play, script: str, verifier: str
) -> None:
    task = make(ONLY_IF_SOLVED, solution="echo 42 > answer.txt\n")
    async with play(task, range=(-1.0, 1.0), verifier=verifier) as world:
        await submit(world, script)
        [validation] = world.validations
        assert (validation.problem, world.reward) == (NOT_GRADED, -1.0)
        assert "wrote neither" in validation.fault


@pytest.mark.parametrize(
    ("solution", "problem"), [("echo 41 > answer.txt\n", "wrote neither"), ("exit 1\n", "wrote")]
)
async def test_silent_tests_are_a_broken_task_if_the_solution_gets_no_reward_either(
    make: Make, play: Play, solution: str, problem: str
) -> None:
    async with play(make(ONLY_IF_SOLVED, solution=solution)) as world:
        with pytest.raises(BrokenTaskError, match=problem):
            await submit(world, "true")


async def test_a_task_that_pays_nobody_stops_the_run(make: Make, tmp_path: Path) -> None:
    """Else an agent could leave its bad episodes of this task out of training."""
    task = make(solution="echo 41 > answer.txt\n")
    taskset = AirTasksetConfig(tasks=[task], harbor=HarborSettings(root=tmp_path))
    agent = vf.AgentConfig.model_validate({"runtime": {"type": "docker"}, "max_turns": 1})
    settings = ResearchEnvConfig(taskset=taskset, agent=agent)
    async with played_by(replies("```bash\necho 40 > answer.txt\n```"), settings) as play:
        # The tests worked at the start of the run.
        tests = tmp_path / "task" / "tests" / "test.sh"
        tests.write_text(ONLY_IF_SOLVED)
        assert not (await play()).ok
        tests.write_text(TEST)
        again = await play()
    assert not again.ok
    errors = [*again.errors, *(error for trace in again.traces for error in trace.errors)]
    assert "valid reward" in str(errors)


SOLUTION, UNSET = "echo 42 > answer.txt\n", '[solution.env]\nKEY = "${AIR_TEST_UNSET}"\n'


@pytest.mark.parametrize(
    ("solution", "more", "verifier"),
    [
        ("", "", "separate"),
        (SOLUTION, UNSET, "shared"),
        pytest.param("", "", "shared", marks=pytest.mark.full),
        pytest.param(SOLUTION, UNSET, "separate", marks=pytest.mark.full),
    ],
)
async def test_without_a_solution_that_can_run_silent_tests_are_the_agents_fault(
    make: Make, play: Play, solution: str, more: str, verifier: str
) -> None:
    task = make(ONLY_IF_SOLVED, solution=solution, more=more)
    async with play(task, range=(-1.0, 1.0), verifier=verifier) as world:
        await submit(world, "true")
        [validation] = world.validations
        assert (validation.problem, world.reward) == (NOT_GRADED, -1.0)
        assert "wrote neither" in validation.fault


async def test_without_declared_artefacts_the_changed_files_are_graded(
    make: Make, play: Play
) -> None:
    test = """\
#!/bin/sh
[ "$(cat answer.txt)" = 42 ] && [ -x bin/run ] && [ "$(readlink latest)" = answer.txt ] && [ -d empty ] \\
&& [ ! -e /outside.txt ] && [ -e /logs/artifacts/log ] && echo 1 > /logs/verifier/reward.txt && exit
echo 0 > /logs/verifier/reward.txt
"""
    script = """
echo 42 > answer.txt; ln -s answer.txt latest; mkdir bin empty; echo true > bin/run; chmod +x bin/run
echo x > /outside.txt; echo x > /logs/artifacts/log
"""
    async with play(make(test, top="")) as world:
        assert (await submit(world, script)).reward == 1.0


USERS = """\
[agent]
user = "agent"
[environment.healthcheck]
command = "id -un > /logs/artifacts/check"
[[verifier.collect]]
command = "id -un > /logs/artifacts/collect"
"""


@pytest.mark.parametrize(
    ("verifier", "users"), [("separate", "root agent root root"), ("shared", "root agent root")]
)
async def test_commands_of_the_task_that_name_no_user_run_as_the_images_user(
    make: Make, play: Play, verifier: str, users: str
) -> None:
    test = f"""\
#!/bin/sh
cd /logs/artifacts
[ "$(echo $(cat check agent collect; id -un))" = "{users}" ] && reward=1 || reward=0
echo $reward > /logs/verifier/reward.txt
"""
    async with play(make(test, more=USERS), verifier=verifier) as world:
        assert (await submit(world, "id -un > /logs/artifacts/agent")).reward == 1.0


async def test_shared_tests_run_in_the_agents_box_without_its_processes(
    make: Make, play: Play
) -> None:
    test = """\
#!/bin/sh
sleep 0.3
[ -e /outside.txt ] && [ ! -e /tests/planted ] && echo 1 > /logs/verifier/reward.txt
[ -e /logs/verifier/reward.txt ] || echo 0 > /logs/verifier/reward.txt
"""
    background = """
mkdir -p /tests; touch /tests/planted
(trap '' TERM; while :; do echo '{"reward": 7}' > /logs/verifier/reward.json; sleep 0.05; done) \\
>/dev/null 2>&1 &
"""
    task = make(test)
    for script, reward in (("echo x > /outside.txt", 1.0), ("true", 0.0)):
        async with play(task, verifier="shared", range=(0.0, 9.0)) as world:
            assert world.task.trust == "shared"
            assert (await submit(world, background + script)).reward == reward
            assert not (await world.box.exec("ls /tests", timeout=9)).ok


async def test_an_agent_that_breaks_its_box_for_shared_tests_earns_the_lowest_reward(
    make: Make, play: Play
) -> None:
    async with play(make(), verifier="shared", range=(-1.0, 1.0)) as world:
        await submit(world, "rm -rf /logs; touch /logs")
        assert (world.validations[0].problem, world.reward) == (NOT_GRADED, -1.0)


async def test_no_process_that_the_tests_started_outlives_them() -> None:
    test = b"""#!/bin/sh
setsid sleep 977 > /dev/null 2>&1 < /dev/null &
echo 1 > /logs/verifier/reward.txt
"""
    async with await open_box(BoxSpec(image="air-base", open=OpenBox(keep=True))) as box:
        await verifier.prepare_logs(box)
        await box.write("/tests/test.sh", test, mode=0o755, user="root")
        outcome = await verifier.run_tests(
            box, user="root", env={}, seconds=60, key="", where="the tests"
        )
        assert outcome.metrics == {"reward": 1.0}
        listed = await box.exec("cat /proc/[0-9]*/cmdline | tr '\\0' ' '", timeout=60)
        assert "977" not in listed.text
