"""Grades one artefact with an evaluation script of MLGym's.

`how.json` beside this file says what to run; `mlgym/` is the workspace that the script expects, to which the
artefact is added in a fresh copy. Both splits are the same evaluation, whose luck, if it has any, has another
seed for the test. In a game, the runner plays the artefact, and the script gets only its moves.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grading import HERE, BadArtefact, described
from grading import run as run_grader
from runner import USUAL_ERRORS, interpreter, second_user

PRISTINE = HERE / "mlgym"
MOST_OUTPUT = 1 << 20
"""Bytes of an evaluation's output that are looked at."""
LAST_WORDS = 300
EVALUATOR, VALUES = "evaluator.py", "mlgym_values.py"
LACKING = """
import importlib.util, sys
print(*(name for name in sys.argv[1:] if importlib.util.find_spec(name) is None))
"""


class FailedEvaluation(BadArtefact):
    """The evaluation failed with the artefact; air or the image may be to blame."""

    def __init__(self, message: str, last_words: str = "") -> None:
        super().__init__(f"{message}: {last_words}" if last_words else message)
        self.message = message
        self.last_words = last_words
        """The last line of the errors of the script, or of the programs around it."""


@dataclass
class Ended:
    """How one evaluation ended."""

    output: bytes
    report: dict[str, Any]
    """What the runner vouches for; empty where the script did not come to its end."""
    why: str
    """The last line of its errors."""


def grade(artefact: Path, split: str, seed: int) -> dict[str, float]:
    """Grades an artefact; `seed` is no secret, and says nothing of the luck of the evaluation."""
    how = json.loads((HERE / "how.json").read_text(encoding="utf-8"))
    luck = f"{how['seed']} {split} {seed}"
    how["luck"] = hashlib.sha256(luck.encode()).hexdigest()
    how["seed"] = seed
    check_imports(how)
    try:
        return evaluated(how, artefact)
    except FailedEvaluation as error:
        probe(how)
        if how["player"] and error.last_words:
            raise FailedEvaluation(error.message, harmless(how, error.last_words)) from None
        raise


def check_imports(how: dict[str, Any]) -> None:
    """Refuses to blame an artefact for what the image lacks.

    Raises:
        RuntimeError: a package that the evaluation script imports is not there.
    """
    names = {name for node in statements(how) for name in imported(node)}
    names -= {path.stem for path in (PRISTINE / how["script"]).parent.iterdir()}
    names -= {Path(name).stem for name in how["artefact"]}
    if lacking := lacks(names, evaluating_user(how)):
        raise RuntimeError(f"this image lacks {lacking[0]}, which the evaluation imports")


def lacks(names: set[str], user: int | None) -> list[str]:
    """Which of the packages a Python that this user runs does not have."""
    command = [python_of(user), "-s", "-c", LACKING, *sorted(names)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, **as_user(user))
    lacking: list[str] = done.stdout.split()
    return lacking


def statements(how: dict[str, Any]) -> Iterator[ast.AST]:
    """All nodes of the evaluation script."""
    return ast.walk(ast.parse((PRISTINE / how["script"]).read_text(encoding="utf-8")))


def imported(node: ast.AST) -> list[str]:
    """The top-level names that a statement imports."""
    if isinstance(node, ast.Import):
        return [alias.name.partition(".")[0] for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
        return [node.module.partition(".")[0]]
    return []


def probe(how: dict[str, Any]) -> None:
    """Makes sure that it is the artefact that cannot be graded.

    Raises:
        RuntimeError: the checkout's own reference cannot be graded either.
    """
    if not how["probe"]:
        return
    reference = new_folder()
    shutil.copyfile(PRISTINE / how["probe"], reference / how["artefact"][0])
    try:
        evaluated(how, reference)
    except BadArtefact as error:
        raise RuntimeError(f"the evaluation fails on {how['probe']}: {error}") from None


def evaluated(how: dict[str, Any], artefact: Path) -> dict[str, float]:
    """The metrics of one evaluation.

    Raises:
        BadArtefact: it could not be evaluated, or its primary metric is not a finite number.
    """
    place = new_folder()
    place.chmod(0o711)  # the second user passes through to what is made readable
    how_so = evaluate_player if how["player"] else evaluate
    ended = how_so(how, artefact, place)
    if "fault" in ended.report:
        raise BadArtefact(ended.report["fault"], remember=ended.report["remember"])
    if not ended.report:
        raise FailedEvaluation("the evaluation did not come to its end", ended.why)
    return checked(how, parse(how["kind"], ended.output))


def harmless(how: dict[str, Any], error: str) -> str:
    """What the agent is told of an error in a game: the text only if it stands in the script.

    Any other text could hold what the strategy has seen, since the strategy chose what caused the error.
    """
    kind, _, text = error.partition(": ")
    if text in [node.value for node in statements(how) if isinstance(node, ast.Constant)]:
        return text
    return kind if kind in USUAL_ERRORS else "Exception"


def evaluate(how: dict[str, Any], artefact: Path, place: Path) -> Ended:
    """Evaluates in a workspace to which the artefact is added, in place of what it replaces.

    Where the script runs code of the artefact, it does so as the second user.
    """
    workspace = place / "workspace"
    shutil.copytree(PRISTINE, workspace)
    for name in how["artefact"]:
        lay(artefact / name, workspace / name)
    readable(workspace)
    return run(how, place, arguments(how, artefact))


def evaluate_player(how: dict[str, Any], artefact: Path, place: Path) -> Ended:
    """Evaluates in a workspace without the artefact, which plays from a folder of its own."""
    module, _, function = how["player"].partition(":")
    shutil.copytree(PRISTINE, place / "workspace")
    (place / "workspace").chmod(0o700)
    (place / "workspace" / f"{module}.py").unlink()
    others = shutil.ignore_patterns("data", Path(how["script"]).name)
    shutil.copytree(PRISTINE, place / "player", ignore=others)
    for name in how["artefact"]:
        lay(artefact / name, place / "player" / name)
    lay(HERE / VALUES, place / "player" / VALUES)
    readable(place / "player")
    player = {
        "module": module,
        "function": function,
        "folder": str(place / "player"),
        "seed": how["seed"],
        "modules": [] if lacks({"numpy"}, second_user()) else ["numpy"],
        "seconds": how["seconds"],
        "memory_mb": how["memory"] >> 20,
    }
    return run(how, place, [], player)


def arguments(how: dict[str, Any], artefact: Path) -> list[str]:
    """What the script is called with."""
    if how["kind"] == "csv":
        return ["--submission_file", f"{how['home']}/submission.csv"]
    if how["kind"] == "model":
        found = sorted(p.relative_to(artefact).as_posix() for p in artefact.rglob("*.yaml"))
        if not found:
            raise BadArtefact("there is no *.yaml among what is graded")
        return ["--config_fname", f"{how['home']}/{found[0]}"]
    return []


def run(
    how: dict[str, Any], place: Path, told: list[str], player: dict[str, Any] | None = None
) -> Ended:
    """Runs the script to its end, or to the time limit where the artefact's code is in it."""
    user = evaluating_user(how)
    program, report, token = HERE / EVALUATOR, place / "report", secrets.token_hex(16)
    if user is not None:  # who may not read this folder
        program = place / "programs" / EVALUATOR
        lay(HERE / EVALUATOR, program)
        readable(program.parent)
    report.mkdir()
    report.chmod(0o777 if user is not None else 0o700)
    workspace = str(place / "workspace")
    settings = {"script": how["script"], "home": how["home"], "key": how["luck"]}
    settings |= {"place": workspace, "report": str(report), "player": player}
    settings["arguments"] = [text.replace(how["home"], workspace) for text in told]
    file = place / "settings.json"
    file.touch(0o600)  # it tells the opponent's luck, which is none of a player's business
    file.write_text(json.dumps(settings), encoding="utf-8")
    if user is not None:
        file.chmod(0o644)
    command = [python_of(user), str(program), str(file)]
    if how["kind"] == "lm":
        launcher = ["-m", "torch.distributed.run", "--standalone"]
        command[1:1] = [*launcher, f"--nproc_per_node={how['processes']}"]
    apart = how["kind"] == "csv" or player is not None
    why = wait(command, place, token, user, None if apart else how["seconds"])
    vouched = {} if why else read_report(report / "said.0", token)
    return Ended(output=tail(place / "output"), report=vouched, why=why or last_line(place))


def read_report(file: Path, token: str) -> dict[str, Any]:
    """What the runner wrote, if it is the runner's: an artefact's code may have been here."""
    try:
        said = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return {}
    return said if isinstance(said, dict) and said.get("token") == token else {}


def wait(
    command: list[str], place: Path, token: str, user: int | None, seconds: float | None
) -> str:
    """Runs the command with its streams in files; says what went wrong if it did not end well.

    Raises:
        BadArtefact: it took too long, with code of the artefact in it.
    """
    env = {name: value for name, value in os.environ.items() if not name.startswith("AIR_")}
    env |= {"AIR_TOKEN": token, "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}
    env |= {"HOME": str(place / "report"), "PYTHONNOUSERSITE": "1"}
    if user is None and second_user() is not None:
        env["AIR_SECOND_UID"] = str(second_user())  # who plays a strategy
    with (place / "output").open("wb") as output, (place / "errors").open("wb") as errors:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            cwd=place,
            env=env,
            start_new_session=True,
            **as_user(user),
        )
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            message = f"the evaluation took longer than {seconds:g} s"
            raise BadArtefact(message, remember=False) from None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return "" if code == 0 else last_line(place) or f"exit {code}"


def parse(kind: str, output: bytes) -> dict[str, Any]:
    """The metrics that an evaluation printed.

    Raises:
        FailedEvaluation: there are none.
    """
    text = output.decode("utf-8", "replace").strip()
    if kind in ("model", "lm"):
        lines = [line for line in text.splitlines() if line.strip().startswith("{")]
        text = lines[-1] if lines else ""
    try:
        said = json.loads(text)
    except (ValueError, RecursionError):
        said = None
    if not isinstance(said, dict):
        other = ", but other text" if text else ""
        raise FailedEvaluation(f"the evaluation printed no metrics{other}")
    return said


def checked(how: dict[str, Any], said: dict[str, Any]) -> dict[str, float]:
    """The metrics that are numbers.

    Raises:
        FailedEvaluation: the primary metric is not among them, or not finite.
    """
    numbers = {name: float(value) for name, value in said.items() if usable(value)}
    if how["metric"] not in numbers:
        raise FailedEvaluation(
            f"{how['metric']} is {described(said.get(how['metric']))}, expected a finite number"
        )
    return numbers


def usable(value: object) -> bool:
    """Whether it is a number that floating point can hold."""
    return (
        isinstance(value, (int, float))
        and not isinstance(value, bool)
        and -sys.float_info.max <= value <= sys.float_info.max
    )


def new_folder() -> Path:
    """A folder of its own in the workspace, which goes with the box: what code of an artefact leaves
    in it need not be removable."""
    return Path(tempfile.mkdtemp(dir=".", prefix="evaluation-")).resolve()


def lay(source: Path, dest: Path) -> None:
    """Puts a file or folder of the artefact where it belongs, in place of what is there."""
    if dest.is_dir():
        shutil.rmtree(dest)
    dest.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, dest)
    elif source.is_file():
        shutil.copyfile(source, dest)
    else:
        raise BadArtefact(f"there is no {source.name}")


def evaluating_user(how: dict[str, Any]) -> int | None:
    """Who runs the evaluation script: the second user, where code of the artefact is in it."""
    return None if how["kind"] == "csv" or how["player"] else second_user()


def as_user(user: int | None) -> dict[str, Any]:
    """Arguments of `Popen` for a process of that user's."""
    return {} if user is None else {"user": user, "group": user, "extra_groups": []}


def python_of(user: int | None) -> str:
    """A Python that this user may run."""
    return sys.executable if user is None else interpreter()


def readable(folder: Path) -> None:
    """Lets every user read what is in a folder, and only this one write."""
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)


def tail(path: Path) -> bytes:
    """The end of a file."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - MOST_OUTPUT))
        return file.read()


def last_line(place: Path) -> str:
    """The last line of an evaluation's errors."""
    text = tail(place / "errors").decode("utf-8", "replace").replace(f"{place}/workspace/", "")
    lines = text.strip().splitlines()
    return lines[-1].strip()[-LAST_WORDS:] if lines else ""


if __name__ == "__main__":
    sys.exit(run_grader(grade))
