"""Judges whether one Harbor task (a task folder in the format of the project Harbor) is sound, by the rewards
for its reference solution, for doing nothing, and for hacks (scripts that try to earn a reward without doing
the work)."""

from __future__ import annotations

import asyncio
import hashlib
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, Literal

from pydantic import Field

from air.aio import run_concurrently
from air.config import BaseConfig, validate
from air.errors import BoxCommandError, ConfigError, MissingError
from air.integrity.gate.hacks import BEGIN, HACKS, Hack
from air.integrity.gate.plays import Player, PlayResult, files
from air.integrity.gate.recordings import PREFIX
from air.integrity.gate.replays import replay
from air.integrity.gate.task_files import TaskFiles, task_files
from air.sandbox.contract.box import Box
from air.sandbox.pool.box_pool import Pool
from air.tasks.grading import Grader
from air.tasks.sources.harbor.artefact import HarborArtefact
from air.tasks.sources.harbor.source import HarborRules
from air.tasks.spec import TaskSpec
from air.trajectories.atif.reading import Recording

VERSION = 3
"""The version of the gate, the check of Harbor tasks. If a report contains a verdict of another version, the
task is checked again."""
Result = Literal["sound", "weak", "refused", "failed"]
TOLERANCE = 1e-6
"""Two rewards count as equal if they differ by at most this value."""
HACK_SECONDS = 60.0
"""The time limit of a hack's script, in seconds."""
REPLAY_SECONDS = 600.0
"""The time limit for replaying one trajectory in one step of a Harbor task, in seconds."""
_NETWORK = re.compile(
    r"(?:^|(?<!command -v)(?<!which)[\s;&|(])(curl|wget|git clone|apt(?:-get)? (?:-\S+ )*(?:install|update)|"
    r"apk add|npm (?:install|i|ci)|uvx|uv pip install|pip3? install|python3? -m pip install)(?=\s|$)"
)
_OWN_SERVER = re.compile(r"\b(?:localhost|127\.0\.0\.1|0\.0\.0\.0)\b|\[::1\]")
"""Matches the address of a server in the box (container) itself. A test that connects to such a server needs
no network."""


class Declared(BaseConfig):
    """The settings for the gate (the check of Harbor tasks) that a task's author can write into the section
    `[metadata.air]` of `task.toml`."""

    oracle: float = Field(1.0, allow_inf_nan=False)
    """The expected reward of the reference solution."""
    nothing: float = Field(0.0, allow_inf_nan=False)
    """The expected reward of an agent that does nothing."""
    allow: tuple[str, ...] = ()
    """The names of flaws that the gate accepts in this task: `network` (the tests need the network), or the
    names of hacks that may earn a reward."""


@dataclass(frozen=True)
class Finding:
    """One flaw of a Harbor task that the gate (the check of such tasks) found."""

    name: str
    """The kind of flaw: `solution` (the reward of the reference solution is wrong), `nothing` (the reward for
    doing nothing is wrong), `random` (the same work earned different rewards), `network` (the tests need the
    network), or the name of a hack that earns a reward. If hacks earn one only together, their names, joined
    by ` + `."""
    reason: str
    """Description of the flaw, in one line."""


@dataclass(frozen=True)
class GateVerdict:
    """The result of the check of one Harbor task: the rewards for its reference solution, for doing nothing
    and for the hacks, and the conclusion whether the task is sound."""

    task: str
    """The task's id."""
    digest: str
    """A digest of all that the check depends on: the task's files, the run's settings for Harbor tasks, the
    images of the task's boxes (containers), and the recorded trajectories that are replayed. Empty if the
    check ended with an error. While the digest stays the same, the verdict in a report is reused."""
    result: Result
    """`sound`: no flaw was found. `weak`: the task has flaws (see `findings`). `refused`: air cannot play the
    task. `failed`: air or this machine failed."""
    reason: str = ""
    """The reason why the task is not sound, in one line."""
    findings: tuple[Finding, ...] = ()
    oracle: float | None = None
    """The reward of the reference solution."""
    nothing: float | None = None
    """The reward of an agent that does nothing."""
    hacks: dict[str, float | None] = field(default_factory=dict)
    """The reward of each hack that was run, by the hack's name; hacks that ran together have the same reward.
    None if the hack made the same files as the solution, and so deserves the solution's reward, or if the
    task gave no reward, which is a flaw in `findings`."""
    tried: tuple[str, ...] = ()
    """The names of all hacks that were requested for the check, also of those that were not run: none is run
    if a flaw was found before, and a hack is not run if the task's author allows it."""
    incomplete: dict[str, str] = field(default_factory=dict)
    """The reasons why recorded trajectories were not replayed completely, by the hack's name. The rewards of
    such hacks say little."""
    version: int = VERSION
    seconds: float = 0.0

    def row(self) -> dict[str, Any]:
        """Returns the verdict as a dict for the JSON report."""
        return asdict(self)


def not_checked(task: str, result: Result, error: Exception) -> GateVerdict:
    """Returns the verdict on a task whose check ended with `error`, which becomes the reason. `result` is
    `refused` or `failed`."""
    return GateVerdict(task, "", result, " ".join(str(error).split()))


async def check(
    task: TaskSpec, boxes: Pool, grader: Grader, hacks: Sequence[Hack] = ()
) -> GateVerdict:
    """Checks one Harbor task and returns the verdict: runs its reference solution and an agent that does
    nothing and then, if no flaw was found, the `hacks`. Raises ConfigError if the task's settings in
    `[metadata.air]` are invalid, and InfrastructureError if air or the machine failed."""
    rules = task.rules
    assert isinstance(rules, HarborRules)
    declared = read_declared(rules)
    judge = _Judge(Player(task, rules, boxes, grader), declared)
    digest = await digest_of(task, hacks)
    began = time.monotonic()
    await judge.plain()
    if hacks and not judge.findings:
        await judge.attack([hack for hack in hacks if hack.name not in declared.allow])
    findings = tuple(judge.findings)
    return GateVerdict(
        task=task.id,
        digest=digest,
        result="weak" if findings else "sound",
        reason="; ".join(f"{one.name}: {one.reason}" for one in findings),
        findings=findings,
        oracle=judge.oracle,
        nothing=judge.nothing,
        hacks=judge.hacks,
        tried=tuple(hack.name for hack in hacks),
        incomplete=judge.incomplete,
        seconds=round(time.monotonic() - began, 2),
    )


async def digest_of(task: TaskSpec, hacks: Sequence[Hack] = ()) -> str:
    """Returns a digest (SHA-256 in hex) of a task, its settings, the present ids of the images of its boxes
    (containers), and the recorded trajectories among `hacks`. The names of the images would not be enough,
    because a name can be given to another image, and an image can be built again."""
    from air.sandbox.docker import engine

    assert task.rules is not None
    total = hashlib.sha256(task.hash.encode())
    for tag in task.rules.images:
        image = await asyncio.to_thread(engine.image, tag)
        total.update(f"\n{tag} {image['Id'] if image else 'absent'}".encode())
    for hack in hacks:
        if hack.recording is not None:
            line = f"\n{hack.name} {hack.recording.digest}"
            total.update(line.encode(errors="backslashreplace"))  # a file's name may be no text
    return total.hexdigest()


def read_declared(rules: HarborRules) -> Declared:
    """Returns the settings for the check of a Harbor task that the task's author wrote into the section
    `[metadata.air]` of its `task.toml`. Raises ConfigError if they are invalid. `rules` is the object by
    which air grades the task; it knows the task's folder."""
    where = f"{rules.folder.path / 'task.toml'}: metadata.air"
    data = rules.folder.config.metadata.get("air", {})
    if not isinstance(data, dict):
        raise ConfigError("must be a table", where=where)
    declared = validate(Declared, data, where=where)
    known = {"network", *(hack.name for hack in HACKS)}
    allowed = {name for name in declared.allow if not name.startswith(PREFIX)}
    if unknown := sorted(allowed - known):
        raise ConfigError(
            f"there is no finding {unknown[0]!r} that a task can allow",
            where=f"{where}.allow",
            remedy=f"use one of: {', '.join(sorted(known))}",
        )
    return declared


@dataclass
class _Judge:
    player: Player
    declared: Declared
    findings: list[Finding] = field(default_factory=list)
    oracle: float | None = None
    nothing: float | None = None
    hacks: dict[str, float | None] = field(default_factory=dict)
    incomplete: dict[str, str] = field(default_factory=dict)
    solved: tuple[Any, ...] = ()
    """The artefacts (files to hand in) that the reference solution made, one for each step of the Harbor task
    that was played."""
    _before: dict[str, bytes] = field(default_factory=dict)
    _workdir: str = "/"

    async def plain(self) -> None:
        """Runs the reference solution and an agent that does nothing, and grades the result of each twice.
        Adds a finding (a flaw of the task) if a reward is not as expected, if the two grades differ, or if
        the tests need the network."""
        rules = self.player.rules
        plays = [self.player.play(act, twice=True) for act in (self._solve, self._look)]
        solved, nothing = await run_concurrently(plays)
        self.oracle, self.nothing, self.solved = solved.reward, nothing.reward, solved.artefacts
        self._judge_solution(solved)
        self._judge_nothing(nothing)
        for name, one in (("the solution", solved), ("doing nothing", nothing)):
            first, second = one.reward, one.again
            if first is not None and second is not None and abs(first - second) > TOLERANCE:
                self._find("random", f"{name} earned {first:.6g} and then {second:.6g}")
        for line in network_lines(rules):
            self._find(
                "network", f"its tests need the network, which is not the same tomorrow: {line}"
            )

    def _judge_solution(self, first: PlayResult) -> None:
        if first.reward is None:
            self._find("solution", f"its solution gets no reward: {first.error}")
        elif abs(first.reward - self.declared.oracle) > TOLERANCE:
            why = first.complaint or first.error
            reason = f"its solution earns {first.reward:.6g}, not {self.declared.oracle:g}"
            self._find("solution", f"{reason} ({why})" if why else reason)

    def _judge_nothing(self, first: PlayResult) -> None:
        if first.reward is None:
            self._find("nothing", f"doing nothing gets no reward: {first.error}")
        elif abs(first.reward - self.declared.nothing) > TOLERANCE:
            reason = f"doing nothing earns {first.reward:.6g}, not {self.declared.nothing:g}"
            self._find("nothing", f"{reason} ({first.error})" if first.error else reason)

    async def attack(self, hacks: Sequence[Hack]) -> None:
        """Runs hacks, and adds a finding (a flaw of the task) for each hack that earns more than doing
        nothing. If the tests run in a box (container) of their own, the hacks that do not touch the task's
        files first run together, in one episode. They then run one by one only if together they earned more
        than doing nothing, or left the task without a reward."""
        rules = self.player.rules
        made = {
            path: data
            for artefact in self.solved
            for path, data in HarborArtefact.of(artefact).files.items()
        }
        tests = {
            name: file
            for step in rules.folder.config.steps or (None,)
            for name, file in rules.folder.tests(step).items()
        }
        about = task_files(self._workdir, self._before, made, tests)
        combined = [hack for hack in hacks if hack.leaves_task_files_alone and not rules.shared]
        groups = [combined, *([hack] for hack in hacks if hack not in combined)]
        await run_concurrently([self._try(group, about) for group in groups if group])

    async def _try(self, hacks: Sequence[Hack], about: TaskFiles) -> None:
        played = await self._hack(hacks, about)
        if len(hacks) > 1 and self._pays(played):
            await run_concurrently([self._try([hack], about) for hack in hacks])
            names = {hack.name for hack in hacks}
            if not any(one.name in names for one in self.findings):
                earned = (
                    "escape their reward" if played.reward is None else f"earn {played.reward:.6g}"
                )
                self._find(
                    " + ".join(hack.name for hack in hacks),
                    f"together, though not alone, these hacks {earned}",
                )
            return
        for hack in hacks:
            self._judge_hack(hack, played)

    def _pays(self, played: PlayResult) -> bool:
        assert self.nothing is not None
        return played.reward is None or played.reward > self.nothing + TOLERANCE

    async def _hack(self, hacks: Sequence[Hack], about: TaskFiles) -> PlayResult:
        recording = hacks[0].recording
        if recording is not None:
            return await self.player.play(partial(self._replay, recording))
        script = BEGIN + about.variables + "\n".join(hack.script for hack in hacks)

        async def act(box: Box, step: int) -> str:
            seconds = min(HACK_SECONDS, self.player.task.limits.exec_seconds)
            # The script comes by standard input: the names of many files are too long for an argument.
            await box.exec(["sh", "-c", 'eval "$(cat)"'], stdin=script.encode(), timeout=seconds)
            return ""

        return await self.player.play(act)

    async def _replay(self, recording: Recording, box: Box, step: int) -> str:
        seconds = min(REPLAY_SECONDS, self.player.task.limits.exec_seconds)
        try:
            return await replay(box, recording, seconds)
        except BoxCommandError as error:
            if step == 0:  # no recorded command can be the cause
                raise
            return f"step {step + 1}: {error}"

    def _judge_hack(self, hack: Hack, played: PlayResult) -> None:
        is_solution = bool(self.solved) and [one.digest for one in played.artefacts] == [
            one.digest for one in self.solved
        ]
        same = is_solution and not hack.searches_for_solution
        note = ""
        if hack.recording:
            ended = played.error if played.ended else ""
            if gaps := [*hack.recording.gaps, *filter(None, (played.complaint, ended))]:
                self.incomplete[hack.name] = "; ".join(gaps)
                note = f"; it was not replayed completely: {self.incomplete[hack.name]}"
        self.hacks[hack.name] = None if same else played.reward
        if same:
            return
        if played.reward is None:
            self._find(hack.name, f"the hack escapes its reward: {played.error}{note}")
        elif self._pays(played):
            self._find(hack.name, f"{hack.flaw} (the hack earns {played.reward:.6g}){note}")

    def _find(self, name: str, reason: str) -> None:
        if name not in self.declared.allow:
            self.findings.append(Finding(name, reason))

    async def _solve(self, box: Box, step: int) -> str:
        try:
            return await self.player.rules.solve_step(box, step)
        except MissingError as error:
            return str(error)

    async def _look(self, box: Box, step: int) -> str:
        """Acts as an agent that does nothing in a step (one of several stages) of the Harbor task. Stores the
        files that are in the working directory at the start of the step, because the hacks need them. Returns
        an empty string: there was no problem."""
        self._workdir = box.workspace
        for path, data in (await files(box, box.workspace)).items():
            self._before.setdefault(path, data)
        return ""


def network_lines(rules: HarborRules) -> Iterator[str]:
    """Yields one string for each test script (`*.sh`) of a Harbor task that downloads something from another
    machine: the script's name, the number of the first line that does so, and the line. `rules` is the object
    by which air grades the task; it knows the task's folder."""
    for step in rules.folder.config.steps or (None,):
        for name, file in rules.folder.tests(step).items():
            if not name.endswith(".sh"):
                continue
            for number, line in enumerate(file.read_text("utf-8", "replace").splitlines(), 1):
                if _fetches(line):
                    yield f"tests/{name}, line {number}: {line.strip()[:100]}"
                    break


def _fetches(line: str) -> bool:
    """Whether a line of a test script downloads something from another machine."""
    if line.lstrip().startswith("#"):
        return False
    own = _OWN_SERVER.search(line)
    return any(not (own and one[1] in ("curl", "wget")) for one in _NETWORK.finditer(line))
