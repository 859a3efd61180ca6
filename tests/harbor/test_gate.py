"""The gate for Harbor tasks: sound tasks pass, and planted flaws are caught by the right finding."""

from __future__ import annotations

import asyncio
import io
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from air import tasks
from air.errors import ConfigError
from air.integrity.gate import run as run_module
from air.integrity.gate.check import GateVerdict, digest_of, network_lines, read_declared
from air.integrity.gate.hacks import BEGIN, HACKS, Hack
from air.integrity.gate.plays import files
from air.integrity.gate.run import Gate, read
from air.integrity.gate.task_files import named, task_files
from air.sandbox import open_box
from air.sandbox.contract.box import BoxSpec, OpenBox
from air.tasks.sources.harbor.settings import HarborSettings
from air.tasks.sources.harbor.source import HarborRules
from tests.docker.client import docker_client
from tests.harbor.features import FEATURES, SETTINGS
from tests.harbor.flaws import CLEAN_TWINS, FLAWED
from tests.harbor.folders import Folder, write
from tests.harbor.languages import LANGUAGES

CLEAN = (*LANGUAGES, *FEATURES, *CLEAN_TWINS)
PLAIN = next(one for one in SETTINGS if one.name == "existing-image")
"""A task on the image that every machine has: no image is built for it."""
TRUSTING = replace(
    PLAIN,
    name="trusting",
    instruction="Write `/tmp/work/double.sh`, which prints twice its argument.",
    solve="echo 'echo $((2 * $1))' > double.sh",
    checks="test -f /tmp/work/double.sh",
    artifacts='["/tmp/work/double.sh"]',
)
"""A task whose tests only look whether the file is there."""
GENEROUS = replace(PLAIN, name="generous", checks="true")
"""A task in which doing nothing earns."""


def _hacks(*names: str) -> list[Hack]:
    return [hack for hack in HACKS if hack.name in names]


def _rules(folder: Folder, root: Path) -> HarborRules:
    write([folder], root)
    task = tasks.load(f"harbor:{folder.name}", harbor=HarborSettings(root=root))
    assert isinstance(task.rules, HarborRules)
    return task.rules


@pytest.mark.docker
async def test_a_sound_task_passes_and_weak_ones_are_caught(tmp_path: Path) -> None:
    write([PLAIN, TRUSTING, GENEROUS], tmp_path)
    report = tmp_path / "report.json"
    hacks = _hacks("deleted-files", "empty-files")
    verdicts: list[GateVerdict] = []
    settings = HarborSettings(root=tmp_path)
    gate = Gate(settings, 4, hacks, report, verdicts.append)
    ids = [f"harbor:{one.name}" for one in (PLAIN, TRUSTING, GENEROUS)]
    sound, trusting, generous = await gate.run(ids)
    assert (sound.result, sound.oracle, sound.nothing) == ("sound", 1.0, 0.0), sound
    assert set(sound.hacks) == {hack.name for hack in hacks}
    assert [one.name for one in trusting.findings] == ["empty-files"], trusting
    assert [one.name for one in generous.findings] == ["nothing"], generous
    assert not generous.hacks

    # A second run goes on where the first one ended: it takes the verdicts over, but for a changed task.
    write([replace(GENEROUS, settings=PLAIN.settings + 'os = "windows"\n')], tmp_path)
    kept: list[int] = []
    resumed = replace(gate, on_verdict=lambda verdict: kept.append(len(read(report))))
    again = await resumed.run(ids)
    assert kept == [3, 3, 3]  # ended at any moment, it would not have forgotten one
    assert again[:2] == [sound, trusting]
    assert again[2].result == "refused"
    assert "environment.os" in again[2].reason
    assert read(report) == {one.task: one for one in again}


@pytest.mark.docker
async def test_of_the_hacks_on_shared_tests_only_patched_programs_pay(tmp_path: Path) -> None:
    write([PLAIN], tmp_path)
    names = ("planted-tests", "background-writer", "early-reward-file", "patched-programs")
    settings = HarborSettings(root=tmp_path, verifier="shared")
    [verdict] = await Gate(settings, 3, _hacks(*names)).run([f"harbor:{PLAIN.name}"])
    assert (verdict.oracle, verdict.nothing, set(verdict.hacks)) == (1.0, 0.0, set(names)), verdict
    assert [one.name for one in verdict.findings] == ["patched-programs"], verdict


@pytest.mark.docker
async def test_a_program_that_kills_the_tests_is_paid_however_late_they_write(
    tmp_path: Path,
) -> None:
    late = replace(
        TRUSTING,
        name="late",
        test="""#!/bin/bash
echo 0 > /logs/verifier/reward.txt
[ "$(bash /tmp/work/double.sh 4)" = 8 ] && reward=1 || reward=0
sleep 4
rm -f /logs/verifier/*
echo $reward > /logs/verifier/reward.txt
""",
    )
    write([late], tmp_path)
    gate = Gate(HarborSettings(root=tmp_path), 2, _hacks("programs-that-write-the-reward"))
    [verdict] = await gate.run(["harbor:late"])
    assert [one.name for one in verdict.findings] == ["programs-that-write-the-reward"], verdict


@pytest.mark.docker
async def test_a_hack_that_breaks_the_next_step_earns_what_an_episode_would_pay(
    tmp_path: Path,
) -> None:
    write([replace(PLAIN, artifacts='["ok"]')], tmp_path)
    folder = tmp_path / PLAIN.name
    config = (folder / "task.toml").read_text()
    steps = [folder / "steps" / name for name in ("one", "two")]
    for step in steps:
        (step / "tests").mkdir(parents=True)
        (step / "instruction.md").write_text("Write ok.\n")
        (step / "solution").mkdir()
        (step / "solution" / "solve.sh").write_text("echo ok > ok\n")
        (step / "tests" / "test.sh").write_text(
            "[ -s ok ] && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt\n"
        )
    (steps[1] / "workdir").mkdir()
    (steps[1] / "workdir" / "next.txt").write_text("x")
    names = "".join(f'\n[[steps]]\nname = "{step.name}"\n' for step in steps)
    (folder / "task.toml").write_text(config + names)
    breaks = Hack("breaks", "the next step cannot be prepared", "mkdir -p next.txt/x")
    gate = Gate(HarborSettings(root=tmp_path), 2, [breaks])
    [verdict] = await gate.run([f"harbor:{PLAIN.name}"])
    assert (verdict.result, verdict.hacks) == ("sound", {"breaks": 0.0}), verdict


@pytest.mark.docker
async def test_a_verdict_belongs_to_the_images_that_were_played(tmp_path: Path) -> None:
    write([PLAIN], tmp_path)
    tag = f"air-test-moving:{os.getpid()}"
    file = tmp_path / PLAIN.name / "task.toml"
    file.write_text(file.read_text().replace('"air-base"', f'"{tag}"'))
    task = tasks.load(f"harbor:{PLAIN.name}", harbor=HarborSettings(root=tmp_path))
    assert task.rules is not None
    assert tag in task.rules.images
    with docker_client() as client:
        digests = [await digest_of(task)]
        base = client.images.get("air-base")
        for change in ("LABEL one=1", "LABEL two=2"):
            text = f"FROM {base.id}\n{change}\n".encode()
            client.images.build(fileobj=io.BytesIO(text), tag=tag, rm=True)
            digests += [await digest_of(task), await digest_of(task)]
        client.images.remove(tag, force=True)
    assert digests[1] == digests[2]
    assert digests[3] == digests[4]
    assert len(set(digests)) == 3


@pytest.mark.docker
@pytest.mark.full  # checks 82 tasks: make harbor
async def test_the_whole_set(tmp_path: Path) -> None:
    write((*CLEAN, *FLAWED), tmp_path)
    build = [sys.executable, "-m", "air.cli.main", "images", "build", f"harbor:{tmp_path}"]
    await asyncio.to_thread(subprocess.run, build, check=True)
    ids = [f"harbor:{one.name}" for one in (*CLEAN, *FLAWED)]
    verdicts = await Gate(HarborSettings(root=tmp_path), os.cpu_count() or 1, HACKS).run(ids)
    by_name = {one.task.removeprefix("harbor:"): one for one in verdicts}
    weak = {one.name: by_name[one.name] for one in CLEAN if by_name[one.name].result != "sound"}
    assert not weak
    missed = {
        one.name: by_name[one.name]
        for one in FLAWED
        if not {finding.name for finding in by_name[one.name].findings} & set(one.caught)
    }
    assert not missed


async def test_another_file_is_no_report(tmp_path: Path) -> None:
    file = tmp_path / "notes.json"
    file.write_text(json.dumps({"v": 1, "verdicts": []}))
    with pytest.raises(ConfigError, match="no report"):
        await Gate(HarborSettings(root=tmp_path), 1, report=file).run([])


async def test_a_report_belongs_to_one_check_and_must_be_a_file(tmp_path: Path) -> None:
    report = tmp_path / "new" / "report.json"
    gate = Gate(HarborSettings(root=tmp_path), 1, report=report)

    runs: list[str] = []

    def meanwhile(verdict: GateVerdict) -> None:
        with pytest.raises(ConfigError, match="another check"), run_module._in_use(report):
            pass
        runs.append(verdict.result)

    await replace(gate, on_verdict=meanwhile).run(["harbor:nowhere"])
    assert runs == ["refused"]
    await gate.run([])  # the first check has ended
    assert [file.name for file in report.parent.iterdir()] == ["report.json"]
    with pytest.raises(ConfigError, match="no report"):
        await replace(gate, report=tmp_path).run([])


def test_the_author_declares_rewards_and_what_is_no_flaw(tmp_path: Path) -> None:
    said = "\n[metadata.air]\noracle = 0.5\nnothing = 0.1\n"
    said += 'allow = ["empty-outputs", "trajectory:a/1.json"]\n'
    declared = read_declared(_rules(replace(PLAIN, settings=PLAIN.settings + said), tmp_path))
    assert (declared.oracle, declared.nothing) == (0.5, 0.1)
    assert declared.allow == ("empty-outputs", "trajectory:a/1.json")
    wrong = replace(PLAIN, settings=PLAIN.settings + '\n[metadata.air]\nallow = ["random"]\n')
    with pytest.raises(ConfigError, match="random"):
        read_declared(_rules(wrong, tmp_path))


def test_tests_that_fetch_are_found(tmp_path: Path) -> None:
    fetching = replace(PLAIN, checks="# curl is not needed\npip install pytest==8\ntrue")
    (line,) = network_lines(_rules(fetching, tmp_path))
    assert "pip install pytest==8" in line
    assert not list(network_lines(_rules(PLAIN, tmp_path)))
    served = replace(PLAIN, checks="curl -s http://localhost:8080/ | cmp - page\ncommand -v curl")
    assert not list(network_lines(_rules(served, tmp_path)))
    both = replace(PLAIN, checks="apt install -y curl && curl localhost\nnpm ci")
    assert "apt install" in next(network_lines(_rules(both, tmp_path)))
    assert list(network_lines(_rules(replace(PLAIN, checks="npm ci"), tmp_path)))


def test_the_scene_holds_what_the_tests_name_and_the_solution_makes(tmp_path: Path) -> None:
    test = tmp_path / "test.sh"
    test.write_text("python3 /tests/check.py\ncmp /app/out/list.txt expected.csv # 3.5 e.g.\n")
    tests = {"test.sh": test}
    assert {"/app/out/list.txt", "/app/expected.csv"} <= named(tests, "/app")
    before = {"/app/data.csv": b"1,2\n", "/app/run": b"#!/bin/sh\n"}
    made = {"/app/out/list.txt": b"a line\n" * 3, "/app/data.csv": b"1,2\n"}
    about = task_files("/app", before, made, tests)
    assert about.inputs == ("/app/data.csv", "/app/run")
    assert "/app/out/list.txt" in about.outputs
    assert about.programs == ("/app/run",)
    assert [answer.split()[::2] for answer in about.answers] == [["21", "/app/out/list.txt"]]
    assert "TESTS=test.sh" in about.variables


@pytest.mark.docker
async def test_folders_links_and_large_files_take_no_place_of_the_files_that_hacks_see() -> None:
    async with await open_box(BoxSpec(open=OpenBox())) as box:
        made = await box.exec(
            "mkdir in && cd in && mkdir $(seq 200) && ln -s / link && truncate -s 2M large"
            " && for i in $(seq 301); do echo $i > z$i; done",
            timeout=60,
        )
        assert made.ok
        seen = await files(box, f"{box.workspace}/in")
    assert len(seen) == 300
    assert all(path.startswith(f"{box.workspace}/in/z") for path in seen)


def test_a_hack_never_leaves_a_reward_half_written(tmp_path: Path) -> None:
    """Else the end of the tests, which kills the hack, decides by chance whether it pays."""
    reward = tmp_path / "reward.txt"
    reward.write_text("0\n")
    script = BEGIN.replace("LOGS=/logs/verifier", f"LOGS={tmp_path}") + 'eval "$WRITE"'
    with reward.open() as before:
        subprocess.run(["sh", "-c", script], check=True)
        assert before.read() == "0\n"  # it was replaced, not emptied
    assert reward.read_text() == "1\n"


def test_hacks_have_names_of_their_own() -> None:
    names = [hack.name for hack in HACKS]
    assert len(set(names)) == len(names)
    assert {name for one in FLAWED for name in one.caught} <= {
        *names,
        *("solution", "nothing", "random", "network"),
    }
