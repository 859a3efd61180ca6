"""Grades one artefact with an evaluation script of MLGym.

The folder of this program contains `how.json`, the settings of the evaluation, and `mlgym/`, the workspace
that the script expects. For each evaluation, the artefact is added to a fresh copy of this workspace. The
validation and the test split have the same evaluation; only its random numbers differ. If the artefact is a
strategy (a function, such as the strategy of a player in a game), it runs in a process of its own, and the
script gets only what it returns.
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
"""The number of bytes at the end of an evaluation's output that are read; earlier output is ignored."""
LAST_WORDS = 300
EVALUATOR, VALUES = "evaluator.py", "mlgym_values.py"
LACKING = """
import importlib.util, sys
print(*(name for name in sys.argv[1:] if importlib.util.find_spec(name) is None))
"""


class FailedEvaluation(BadArtefact):
    """Raised if the evaluation of an artefact failed. The cause may be the artefact, the image or air."""

    def __init__(self, message: str, last_words: str = "") -> None:
        super().__init__(f"{message}: {last_words}" if last_words else message)
        self.message = message
        self.last_words = last_words
        """The last line that the evaluation wrote to standard error; empty if there is none."""


@dataclass
class Ended:
    """The result of one run of the evaluation script."""

    output: bytes
    report: dict[str, Any]
    """The report that `evaluator.py` wrote; empty if the script did not run to its end."""
    why: str
    """The last line that the evaluation wrote to standard error, or its exit status if it failed without such
    a line. Empty if it succeeded without one."""


def grade(artefact: Path, split: str, seed: int) -> dict[str, float]:
    """Grades an artefact on a split and returns its metrics. The evaluation's random numbers follow from
    `seed`, from the split, and from the secret split seed in `how.json`, because a strategy in a game can
    read `seed`."""
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
    """Checks that the image has all packages that the evaluation script imports, so that an artefact is not
    blamed for a missing package. Raises RuntimeError if a package is missing."""
    names = {name for node in statements(how) for name in imported(node)}
    names -= {path.stem for path in (PRISTINE / how["script"]).parent.iterdir()}
    names -= {Path(name).stem for name in how["artefact"]}
    if lacking := lacks(names, evaluating_user(how)):
        raise RuntimeError(f"this image lacks {lacking[0]}, which the evaluation imports")


def lacks(names: set[str], user: int | None) -> list[str]:
    """Returns those of the packages `names` that the Python interpreter of the user with the id `user` lacks;
    None is the present user."""
    command = [python_of(user), "-s", "-c", LACKING, *sorted(names)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, **as_user(user))
    lacking: list[str] = done.stdout.split()
    return lacking


def statements(how: dict[str, Any]) -> Iterator[ast.AST]:
    """Yields all nodes of the evaluation script's syntax tree."""
    return ast.walk(ast.parse((PRISTINE / how["script"]).read_text(encoding="utf-8")))


def imported(node: ast.AST) -> list[str]:
    """Returns the names of the top-level modules that a statement imports."""
    if isinstance(node, ast.Import):
        return [alias.name.partition(".")[0] for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
        return [node.module.partition(".")[0]]
    return []


def probe(how: dict[str, Any]) -> None:
    """Evaluates a file of the checkout (the setting `probe`) after the evaluation of an artefact failed, to
    show that the artefact is the cause. Does nothing if the task has no such file. Raises RuntimeError if the
    evaluation of this file fails, too."""
    if not how["probe"]:
        return
    reference = new_folder()
    shutil.copyfile(PRISTINE / how["probe"], reference / how["artefact"][0])
    try:
        evaluated(how, reference)
    except BadArtefact as error:
        raise RuntimeError(f"the evaluation fails on {how['probe']}: {error}") from None


def evaluated(how: dict[str, Any], artefact: Path) -> dict[str, float]:
    """Evaluates an artefact once, and returns its metrics. Raises BadArtefact if the artefact cannot be
    evaluated, or its primary metric is not a finite number."""
    place = new_folder()
    place.chmod(0o711)  # the second user needs a way to the readable files below
    how_so = evaluate_player if how["player"] else evaluate
    ended = how_so(how, artefact, place)
    if "fault" in ended.report:
        raise BadArtefact(ended.report["fault"], remember=ended.report["remember"])
    if not ended.report:
        raise FailedEvaluation("the evaluation did not come to its end", ended.why)
    return checked(how, parse(how["kind"], ended.output))


def harmless(how: dict[str, Any], error: str) -> str:
    """Returns the part of an error message of a strategy's evaluation that the agent may read. This is the
    message without its error type if the message is a constant in the evaluation script, otherwise only the
    type.

    Other messages can contain hidden data that the strategy has seen, because the strategy may have caused
    the error.
    """
    kind, _, text = error.partition(": ")
    if text in [node.value for node in statements(how) if isinstance(node, ast.Constant)]:
        return text
    return kind if kind in USUAL_ERRORS else "Exception"


def evaluate(how: dict[str, Any], artefact: Path, place: Path) -> Ended:
    """Runs the evaluation script in a workspace to which the artefact is added. Files of the artefact replace
    files of the workspace with the same path.

    If the script executes code of the artefact, the script runs as the box's second user (`AIR_SECOND_UID`).
    """
    workspace = place / "workspace"
    shutil.copytree(PRISTINE, workspace)
    for name in how["artefact"]:
        lay(artefact / name, workspace / name)
    readable(workspace)
    return run(how, place, arguments(how, artefact))


def evaluate_player(how: dict[str, Any], artefact: Path, place: Path) -> Ended:
    """Evaluates the agent's strategy. It runs in a folder of its own, so the workspace of the evaluation
    script does not contain it."""
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
    """Returns the command-line arguments of the evaluation script."""
    if how["kind"] == "csv":
        return ["--submission_file", f"{how['home']}/submission.csv"]
    if how["kind"] == "model":
        found = sorted(p.relative_to(artefact).as_posix() for p in artefact.rglob("*.yaml"))
        if not found:
            raise BadArtefact(
                "the submission has no file *.yaml: write the model's configuration into one"
            )
        return ["--config_fname", f"{how['home']}/{found[0]}"]
    return []


def run(
    how: dict[str, Any], place: Path, told: list[str], player: dict[str, Any] | None = None
) -> Ended:
    """Runs the evaluation script with the arguments `told`, and returns the result. A script whose process
    also executes code of the artefact is stopped at the time limit. `player` has the settings of the process
    in which the agent's strategy runs; None if the artefact is no strategy."""
    user = evaluating_user(how)
    program, report, token = HERE / EVALUATOR, place / "report", secrets.token_hex(16)
    if user is not None:  # the second user may not read the grader's folder
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
    file.touch(0o600)  # a strategy must not read the key of the random numbers
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
    """Returns the report of `evaluator.py`. Returns an empty dict if there is none, or if it lacks the secret
    token: code of the artefact may have written it."""
    try:
        said = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return {}
    return said if isinstance(said, dict) and said.get("token") == token else {}


def wait(
    command: list[str], place: Path, token: str, user: int | None, seconds: float | None
) -> str:
    """Runs the command, and writes its output and errors to files in `place`. Returns an empty text if the
    command succeeds, otherwise its last error line (or its exit status if there is no such line).

    Raises BadArtefact if the command takes longer than `seconds`. None: there is no time limit, because the
    command executes no code of the artefact.
    """
    env = {name: value for name, value in os.environ.items() if not name.startswith("AIR_")}
    env |= {"AIR_TOKEN": token, "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}
    env |= {"HOME": str(place / "report"), "PYTHONNOUSERSITE": "1"}
    if user is None and second_user() is not None:
        env["AIR_SECOND_UID"] = str(second_user())  # the user that runs the agent's strategy
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
    """Returns the metrics that an evaluation printed as a JSON object. Raises FailedEvaluation if it printed
    none."""
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
    """Returns those metrics that are finite numbers. Raises FailedEvaluation if the primary metric is not
    among them."""
    numbers = {name: float(value) for name, value in said.items() if usable(value)}
    if how["metric"] not in numbers:
        raise FailedEvaluation(
            f"{how['metric']} is {described(said.get(how['metric']))}, expected a finite number"
        )
    return numbers


def usable(value: object) -> bool:
    """Whether a metric's value is a finite number that fits into a float."""
    return (
        isinstance(value, (int, float))
        and not isinstance(value, bool)
        and -sys.float_info.max <= value <= sys.float_info.max
    )


def new_folder() -> Path:
    """Makes a new folder in the grader box's workspace and returns its path. The folder is not removed,
    because code of an artefact can leave files that cannot be removed; it is gone when the box is."""
    return Path(tempfile.mkdtemp(dir=".", prefix="evaluation-")).resolve()


def lay(source: Path, dest: Path) -> None:
    """Copies the file or folder `source` to `dest`, and replaces a file or folder that is there already.
    Raises BadArtefact if `source` does not exist."""
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
    """Returns the id of the user that runs the evaluation script: the second user of the box if the script
    executes code of the artefact; None for the present user."""
    return None if how["kind"] == "csv" or how["player"] else second_user()


def as_user(user: int | None) -> dict[str, Any]:
    """Returns the arguments of `Popen` that start a process as `user`; None is the present user."""
    return {} if user is None else {"user": user, "group": user, "extra_groups": []}


def python_of(user: int | None) -> str:
    """Returns the path of a Python interpreter that `user` may run; None is the present user."""
    return sys.executable if user is None else interpreter()


def readable(folder: Path) -> None:
    """Makes a folder and all files in it readable for every user, and writable only for the present user."""
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)


def tail(path: Path) -> bytes:
    """Returns the last `MOST_OUTPUT` bytes of a file."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - MOST_OUTPUT))
        return file.read()


def last_line(place: Path) -> str:
    """Returns the last line that an evaluation in the folder `place` wrote to standard error, or an empty
    text."""
    text = tail(place / "errors").decode("utf-8", "replace").replace(f"{place}/workspace/", "")
    lines = text.strip().splitlines()
    return lines[-1].strip()[-LAST_WORDS:] if lines else ""


if __name__ == "__main__":
    sys.exit(run_grader(grade))
