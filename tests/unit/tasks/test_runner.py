"""The runner of agent code: what it passes on, what it says of code at fault, and what it never waits for."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from air.tasks.spec import TaskLimits
from tests.unit.tasks.shipped.programs import shared

RUNNER = shared("runner")
Limits, BadArtefact = RUNNER.Limits, RUNNER.BadArtefact
Call = Callable[..., list[Any]]
TO_ALL = (
    "import os\ndef say(data):\n    for fd in range(3, 30):\n"
    "        try: os.write(fd, data)\n        except OSError: pass\n"
)
"""`say` writes to whatever agent code can write to."""


def code(place: Path, source: str) -> Path:
    file = place / "given.py"
    file.write_text(source, encoding="utf-8", errors="surrogateescape")
    return file


@pytest.fixture
def call(tmp_path: Path) -> Call:
    """Answers of `f` in the given source to arguments in turn; the first call loads it afresh."""

    def calls(
        source: str,
        *arguments: Any,
        seed: int = 0,
        afresh: bool = False,
        limits: Any = RUNNER.USUAL,
    ) -> list[Any]:
        answers = []
        with RUNNER.Runner(code(tmp_path, source), "f", seed=seed, limits=limits) as runner:
            for at, x in enumerate(arguments):
                if afresh or at == 0:
                    runner.load()
                answers.append(runner.call(x))
        return answers

    return calls


def test_the_usual_limits_leave_honest_code_time_and_end_before_the_grader() -> None:
    """Tests of graders in boxes copy the runner with shorter limits, so that they do not wait for these."""
    assert (Limits().seconds, Limits().cpu_seconds) == (50.0, 5)
    assert Limits().seconds < TaskLimits().grade_seconds


def test_arguments_and_answers_pass(call: Call) -> None:
    given = [1, -2.5, "ä\n", None, True, {"a": [[]]}, list(range(50_000))]
    assert call("def f(x):\n    return x\n", *given) == given


def test_numbers_of_numpy_are_answers(call: Call) -> None:
    source = "import numpy\ndef f(x):\n    return [numpy.int64(x), numpy.arange(2), numpy.float32(0.5)]\n"
    assert call(source, 7) == [[7, [0, 1], 0.5]]


def test_state_lasts_until_the_file_is_loaded_afresh(call: Call) -> None:
    source = "n = 0\ndef f(x):\n    global n\n    n += 1\n    return n\n"
    assert call(source, 0, 0, 0) == [1, 2, 3]
    assert call(source, 0, 0, 0, afresh=True) == [1, 1, 1]


def test_a_load_knows_nothing_of_the_one_before(call: Call) -> None:
    """Modules, files of its folder and processes that it left are others."""
    source = (
        "import json, os\nnew = not hasattr(json, 'been')\njson.been = True\n"
        "def f(x):\n    return [new, os.getpid()]\n"
    )
    answers = call(source, 0, 0, 0, afresh=True)
    assert [new for new, _ in answers] == [True] * 3
    assert len({pid for _, pid in answers}) == 3


COUNTERS = (
    "import os, resource, socket, sys, time\n"
    "def tried(read):\n    try: return read()\n    except OSError: return None\n"
    "def callers():\n    frame, numbers = sys._getframe(), []\n    while frame := frame.f_back:\n"
    "        own = {k: v for k, v in frame.f_locals.items() if k != 'seed'}\n"
    "        numbers += [[k, v] for k, v in own.items() if type(v) in (int, float)]\n"
    "    return numbers\n"
    "def spent():\n    parent = open('/proc/%d/stat' % os.getppid()).read()\n"
    "    return parent.rpartition(')')[2].split()[13:15]\n"
    "def f(x):\n    found = [callers(), tried(spent), list(resource.getrlimit(resource.RLIMIT_CPU)),\n"
    "        tried(lambda: time.clock_gettime(~os.getppid() << 3 | 2)),\n"
    "        tried(lambda: os.fstat(os.pipe()[0]).st_ino),\n"
    "        tried(lambda: socket.socketpair()[0].fileno()), tried(lambda: open('x', 'w').name)]\n"
    "    while time.process_time() < 0.6: pass\n    return found\n"
)
"""What a load could read of the loads before it, each of which uses 0.6 s of processor time."""


def test_a_load_reads_no_number_that_an_earlier_one_changes(call: Call) -> None:
    first, *others = call(COUNTERS, 0, 0, 0, afresh=True)
    assert others == [first] * 2
    assert first[2:] == [[5, 6], None, None, None, None]


def test_the_graders_arguments_do_not_tell_the_split(tmp_path: Path) -> None:
    """Every user could read them in /proc where the kernel cannot close it."""
    shutil.copy(Path(RUNNER.__file__).with_name("grading.py"), tmp_path)
    (tmp_path / "grade.py").write_text(
        "import grading, sys\nfrom pathlib import Path\n"
        "def grade(artefact, split, seed):\n"
        "    print([Path('/proc/self/cmdline').read_text().strip('\\0')])\n"
        "    return {}\nsys.exit(grading.run(grade))\n"
    )
    arguments = ["--artefact", "x", "--split", "val", "--seed", "1", "--out", str(tmp_path / "out")]
    said = subprocess.run(
        [sys.executable, tmp_path / "grade.py", *arguments],
        env=os.environ | {"AIR_SECOND_UID": "65533"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout == "['']\n"


def test_luck_is_seeded_anew_for_every_load(call: Call) -> None:
    source = "import random\ndef f(x):\n    return random.random()\n"
    first = call(source, 0, 0, afresh=True)
    assert first == call(source, 0, 0, afresh=True)
    assert len({*first, *call(source, 0, 0, afresh=True, seed=7)}) == 4


def test_arguments_are_copies(call: Call) -> None:
    assert call("def f(x):\n    x.append(1)\n    return 0\n", given := [5]) == [0]
    assert given == [5]


def test_it_works_in_a_folder_of_its_own_that_is_removed(call: Call) -> None:
    source = (
        "import os, tempfile\nopen('kept', 'w').write('x')\n"
        "def f(x):\n    return [os.getcwd(), tempfile.gettempdir(), os.listdir()]\n"
    )
    [[here, temporary, files]] = call(source, 0, limits=Limits(file_mb=1))
    assert here == temporary
    assert files == ["kept"]
    assert not Path(here).exists()


def test_limits_are_put_on_agent_code(tmp_path: Path) -> None:
    source = (
        "import os, resource as r\ndef f(x):\n"
        "    names = ['CPU', 'AS', 'FSIZE', 'NOFILE', 'NPROC', 'CORE']\n"
        "    return [os.getpid(), *(r.getrlimit(getattr(r, 'RLIMIT_' + n))[1] for n in names)]\n"
    )
    with RUNNER.Runner(code(tmp_path, source), "f", seed=0) as runner:
        runner.load()
        pid, *limits = runner.call(0)
        score = Path(f"/proc/{pid}/oom_score_adj").read_text()
    assert (score, limits) == ("1000\n", [6, 1 << 30, 0, 64, 0, 0])


def test_a_protocol_of_a_tasks_own(tmp_path: Path) -> None:
    with RUNNER.Runner(
        code(tmp_path, "def f(n):\n    return n + 1\n"), "f", seed=0, protocol=lengths
    ) as runner:
        runner.load()
        assert [runner.ask(b""), runner.ask(b"abc")] == [b"1", b"4"]


def lengths(f: Callable[[int], int]) -> Callable[[bytes], bytes]:
    def answer(request: bytes) -> bytes:
        return b"%d" % f(len(request))

    return answer


PATIENT = RUNNER.USUAL._replace(seconds=600)


def fault(place: Path, source: str, limits: Any = PATIENT) -> Any:
    """The error that code at fault raises when it is loaded and called."""
    file = code(place, source)
    with pytest.raises(BadArtefact) as caught:
        one_call(file, limits)
    return caught.value


def one_call(file: Path, limits: Any = PATIENT) -> None:
    with RUNNER.Runner(file, "f", seed=0, limits=limits) as runner:
        runner.load()
        runner.call(1)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("def f(", r"SyntaxError: .* \(given.py, line 1\)"),
        ("x = 1", "TypeError: it defines no function f"),
        ("def f(x):\n    return 1 / 0", "failed: ZeroDivisionError$"),
        ("def f(x):\n    raise SystemExit(0)", "failed: Exception$"),
        ("import os\nos._exit(0)", "ended before it was done"),
        ("import os\nos.kill(os.getppid(), 9)\nos._exit(0)", "ended before it was done"),
        ("def f(x):\n    return float('nan')", "returned NaN, which is no number"),
        ("def f(x):\n    return [-float('inf')]", "returned -Infinity"),
        ("def f(x):\n    return {1, 2}", "JSON cannot hold"),
        ("def f(x):\n    return 'x' * 1_000_001", "more than 1000000 bytes"),
        ("def f(x):\n    x = [x]\n    x[0] = x\n    return x", "JSON cannot hold"),
        ("def f(x):\n    return 10**5000", "JSON cannot hold"),
        ("def f(x):\n    return len([0] * 10**10)", "MemoryError"),
        (TO_ALL + "say(b'A1\\n' * 5)\ndef f(x):\n    return 1", "out of turn"),
        (TO_ALL + "say(b'R\\0\\0\\0\\0')\nsay(b'A\\0\\0\\0\\1[')\nos._exit(0)", "out of turn|no JSON"),
        (TO_ALL + "def f(x):\n    say(b'A\\0\\0\\0\\1[')\n    os._exit(0)", "no JSON"),
        (TO_ALL + "def f(x):\n    say(b'A\\0\\0\\0\\x011A\\0\\0\\0\\x012')\n    return 3", "out of turn"),
        (TO_ALL + "def f(x):\n    while True: say(b'A' * 60_000)", "more than 1000000 bytes"),
        (TO_ALL + "def f(x):\n    say(b'E\\0\\0\\0\\2[]')\n    return 1", "failed: Exception$|out of turn"),
        ("#" * 100_001, "larger than 100 kB"),
        ("\udcff", "utf-8"),
    ],
)  # fmt: skip
def test_code_at_fault_is_told_so(tmp_path: Path, source: str, said: str) -> None:
    error = fault(tmp_path, source)
    assert re.search(said, str(error)), str(error)
    assert error.remember


def test_code_that_spins_is_told_so(tmp_path: Path) -> None:
    source = "def f(x):\n    while True: pass"
    error = fault(tmp_path, source, PATIENT._replace(cpu_seconds=1))
    assert "used more than 1 s of processor time" in str(error)
    assert error.remember


def test_processor_time_is_that_of_all_loads_or_of_each(tmp_path: Path) -> None:
    """Each load uses a tenth of a second, all together more than one."""
    source = "import time\ndef f(x):\n    while time.process_time() < 0.1: pass\n    return 1\n"
    for per_load, said in ((True, ""), (False, "more than 1 s of processor time")):
        limits = Limits(cpu_seconds=1, cpu_per_load=per_load, seconds=600)
        text = ""
        with RUNNER.Runner(code(tmp_path, source), "f", seed=0, limits=limits) as runner:
            try:
                for _ in range(20):
                    runner.load()
                    runner.call(0)
            except BadArtefact as error:
                text = str(error)
        assert said in text
        assert bool(said) == bool(text), text


def test_an_error_carries_nothing_of_what_the_code_was_shown(tmp_path: Path) -> None:
    """Neither in its text, its kind, its line, nor in a frame that the code writes by itself."""
    sources = (
        "def f(x):\n    raise ValueError(x)\n",
        "def f(x):\n    raise type(x, (KeyError,), {})\n",
        TO_ALL
        + "import json\ndef f(x):\n    data = json.dumps(dict(kind=x, line=x, text=x)).encode()\n"
        "    say(b'E' + len(data).to_bytes(4, 'big') + data)\n    os._exit(0)\n",
        "def f(x):\n    exec('\\n' * 9999 + 'raise ValueError', {})\n",
    )
    texts = []
    for source in sources:
        with RUNNER.Runner(code(tmp_path, source), "f", seed=0) as runner:
            runner.load()
            with pytest.raises(BadArtefact) as caught:
                runner.call("secret")
            texts.append(str(caught.value).partition(": ")[2])
    assert texts == ["ValueError", "KeyError", "Exception", "ValueError"]


def test_an_error_before_anything_was_shown_has_its_text(tmp_path: Path) -> None:
    error = fault(tmp_path, "\nraise RuntimeError('because\\nof  this' + 'x' * 1000)\n")
    assert re.fullmatch(
        r"given.py failed: RuntimeError: because of thisx{380,400} \(line 2\)", str(error)
    )


@pytest.mark.parametrize(
    "source",
    [
        "import time\ntime.sleep(600)",
        "import time\ndef f(x):\n    time.sleep(600)",
        "import os, time\ndef f(x):\n    os.closerange(0, 64)\n    time.sleep(600)",
        "import os, signal, time\ndef f(x):\n    os.kill(os.getppid(), signal.SIGSTOP)\n    time.sleep(600)",
        "import os, time\ndef f(x):\n    time.sleep(600 if os.fork() else os.setsid() or 65)",
    ],
)  # fmt: skip
def test_code_that_does_nothing_more_does_not_hold_the_grader_up(
    tmp_path: Path, source: str
) -> None:
    began = time.monotonic()
    error = fault(tmp_path, source, Limits(seconds=1.0))
    assert "took longer than 1 s" in str(error) or "ended before" in str(error)
    assert time.monotonic() - began < 60


def test_code_that_never_reads_does_not_hold_the_grader_up(tmp_path: Path) -> None:
    """It answers ahead of time and sleeps, while the next request is larger than the socket takes."""
    source = TO_ALL + "import time\ndef f(x):\n    say(b'A\\0\\0\\0\\x011')\n    time.sleep(600)\n"
    began = time.monotonic()
    with RUNNER.Runner(code(tmp_path, source), "f", seed=0, limits=Limits(seconds=10.0)) as runner:
        runner.load()
        assert runner.call(1) == 1
        with pytest.raises(BadArtefact) as caught:
            runner.call("x" * 10_000_000)
    assert "took longer" in str(caught.value)
    assert not caught.value.remember
    assert time.monotonic() - began < 60


def test_code_that_answers_without_end_and_never_reads_is_told_so(tmp_path: Path) -> None:
    """It fills its side of the socket while the grader fills the other."""
    source = TO_ALL + (
        "import threading\ndef f(x):\n"
        "    threading.Thread(target=lambda: [say(b'A\\0\\0\\0\\x011') for _ in range(10**9)]).start()\n"
        "    threading.Event().wait(600)\n"
    )
    began = time.monotonic()
    with RUNNER.Runner(code(tmp_path, source), "f", seed=0) as runner:
        runner.load()
        with pytest.raises(BadArtefact, match="out of turn"):
            _ = [runner.call("x" * 1_000_000) for _ in range(1000)]
    assert time.monotonic() - began < 60


def test_what_the_code_leaves_running_is_killed(tmp_path: Path) -> None:
    """Also a load that left the group of its parent, and that does not see its socket closed."""
    source = (
        "import os, time, __main__\nos.setsid()\n"
        "def f(x):\n    __main__.receive = lambda link: time.sleep(600)\n    return os.getpid()\n"
    )
    with RUNNER.Runner(code(tmp_path, source), "f", seed=0) as runner:
        runner.load()
        first = runner.call(0)
        runner.load()
        second = runner.call(0)
        assert not alive(first)
        assert alive(second)
    end = time.monotonic() + 60
    while alive(second) and time.monotonic() < end:  # its new parent has to reap it
        time.sleep(0.01)
    assert not alive(second)


def test_a_lingering_child_does_not_hold_the_grade_up(tmp_path: Path) -> None:
    """It holds the socket of its parent, which answers as it should. Root may start processes."""
    source = (
        "import os, time\nchild = os.fork()\nif child == 0:\n    os.setsid()\n    time.sleep(600)\n"
        "def f(x):\n    return child\n"
    )
    began = time.monotonic()
    child = 0
    try:
        with RUNNER.Runner(
            code(tmp_path, source), "f", seed=0, limits=Limits(processes=None)
        ) as runner:
            runner.load()
            child = runner.call(0)
        assert time.monotonic() - began < 60
    finally:
        if child:
            os.kill(child, signal.SIGKILL)


def alive(pid: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def test_nothing_but_the_source_and_what_is_asked_is_in_its_reach(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "of the grader")
    source = (
        "import os, stat\n"
        "def f(x):\n    fds = [fd for fd in range(64) if kind(fd)]\n"
        "    return [sorted(os.environ), {kind(fd) for fd in fds[:3]} == {'c'}, len(fds), kind(fds[-1])]\n"
        "def kind(fd):\n    try: return stat.filemode(os.fstat(fd).st_mode)[0]\n"
        "    except OSError: return ''\n"
    )
    [[names, null, count, last]] = call(source, 0)
    assert set(names) - {"LC_CTYPE"} == {"PATH", "PYTHONHASHSEED", "TMPDIR", *RUNNER.THREADS}
    assert (null, count, last) == (True, 4, "s")


def test_a_missing_file_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(BadArtefact, match="cannot be read"):
        RUNNER.Runner(tmp_path / "given.py", "f", seed=0)


def test_a_player_that_does_not_start_is_not_the_codes_fault(
    tmp_path: Path,
) -> None:
    """A copy of the runner, beside a player that ends at once."""
    folder = tmp_path / "shared"
    shutil.copytree(Path(RUNNER.__file__).parent, folder)
    (folder / "player.py").write_text("raise SystemExit(1)")
    spec = importlib.util.spec_from_file_location("runner_with_broken_player", folder / "runner.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    file = code(tmp_path, "def f(x):\n    return x\n")
    with (
        pytest.raises(RuntimeError, match="before it had run any agent code"),
        module.Runner(file, "f", seed=0, limits=PATIENT) as runner,
    ):
        runner.load()
