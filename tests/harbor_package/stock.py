"""What Harbor's own package says of folders and documents. Runs in the environment that has it.

stock.py look FOLDER …    a JSON line for each task: valid or why not, what lint finds, the digest
stock.py atif FILE …      a JSON line for each document: valid or why not
stock.py trials AGENT OUT FOLDER …   a JSON line for each task: rewards or the error, and seconds
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
import warnings
from functools import cache
from pathlib import Path
from typing import Any

warnings.simplefilter("ignore")
sys.path.insert(0, str(Path(__file__).parent))


def look(paths: list[Path]) -> None:
    from harbor.lint.models import DEFAULT_RULES
    from harbor.lint.task import lint_task
    from harbor.models.task.task import Task
    from harbor.publisher.packager import Packager

    for path in paths:
        said: dict[str, Any] = {"path": str(path), "error": "", "lint": [], "digest": ""}
        try:
            Task(path)
            said["digest"] = Packager.compute_content_hash(path)[0]
        except Exception as error:  # whatever Harbor raises is its verdict
            said["error"] = said_by(error)
        try:
            found = lint_task(path, selected_rules=DEFAULT_RULES)
            said["lint"] = [f"{one.rule}: {one.message}" for one in found]
        except Exception as error:  # for example, `docker compose` is not here
            said["lint"] = [f"not run: {said_by(error)}"]
        print(json.dumps(said), flush=True)


def said_by(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def atif(paths: list[Path]) -> None:
    from harbor.models.trajectories import Trajectory

    for path in paths:
        error = ""
        try:
            Trajectory.model_validate_json(path.read_text())
        except ValueError as problem:
            error = str(problem)
        print(json.dumps({"path": str(path), "error": error}), flush=True)


@cache
def has_compose() -> bool:
    """Whether Harbor's own Docker environment can run here."""
    words = ["docker", "compose", "version"]
    return not subprocess.run(words, capture_output=True, check=False).returncode


async def trials(agent: str, out: Path, paths: list[Path]) -> None:
    import harbor.trial.single_step  # noqa: F401 - it takes seconds, which belong to no trial

    for path in paths:
        began = time.monotonic()
        rewards, error = await trial(agent, out, path)
        said = {"path": str(path), "rewards": rewards, "error": error}
        print(json.dumps(said | {"seconds": time.monotonic() - began}), flush=True)


async def trial(agent: str, out: Path, path: Path) -> tuple[dict[str, float] | None, str]:
    """Returns the rewards of one trial with an agent of Harbor's, and its error."""
    from harbor.models.trial.config import AgentConfig, EnvironmentConfig, TaskConfig, TrialConfig
    from harbor.trial.trial import Trial

    environment = EnvironmentConfig(
        type="docker" if has_compose() else None,
        import_path=None if has_compose() else "docker_environment:DockerCommand",
    )
    try:
        made = await Trial.create(
            TrialConfig(
                task=TaskConfig(path=path),
                trials_dir=out,
                agent=AgentConfig(name=agent),
                environment=environment,
            )
        )
        result = await made.run()
    except Exception as error:  # whatever Harbor raises is its verdict
        return None, said_by(error)
    info = result.exception_info
    error = f"{info.exception_type}: {info.exception_message}"[:300] if info else ""
    return (result.verifier_result.rewards if result.verifier_result else None), error


if __name__ == "__main__":
    action, *words = sys.argv[1:]
    if action == "look":
        look([Path(word) for word in words])
    elif action == "atif":
        atif([Path(word) for word in words])
    else:
        asyncio.run(trials(words[0], Path(words[1]), [Path(word) for word in words[2:]]))
