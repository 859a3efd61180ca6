"""Runs SandboxFusion's own test files, unchanged, against a server of ours: `make test-serve FUSION=DIR`.

    python -m tests.docker.serve.fusion_suite DIR [pytest's arguments]

The files speak to the application inside their process, by FastAPI's test client. Modules of the same names
stand in for it: they send each request to our server.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import httpx

from tests.docker.serve.serving import serving

RUNNERS = (
    *("bash", "cpp", "go", "go_test", "java", "jupyter", "lua", "nodejs", "perl", "php", "pytest"),
    *("python", "ruby", "rust", "typescript"),
)
DATASETS = ("provided_data",)
_CLIENT = """
import os
import httpx

class TestClient(httpx.Client):
    __test__ = False

    def __init__(self, app):
        super().__init__(base_url=os.environ["AIR_SERVE_URL"], timeout=600)
"""
_MODELS = """
from types import SimpleNamespace
from air.serve.fusion.messages import RunCodeAnswer as RunCodeResponse
from air.serve.fusion.messages import RunCodeRequest
from air.serve.fusion.messages import RunJupyterAnswer as RunJupyterResponse
from air.serve.fusion.messages import RunJupyterRequest
from air.serve.fusion.datasets.messages import *

class CommandRunStatus:
    Finished, Error, TimeLimitExceeded = "Finished", "Error", "TimeLimitExceeded"

class RunStatus:
    Success, Failed, SandboxError = "Success", "Failed", "SandboxError"

app = None
"""
_MODULES = {
    "fastapi/__init__.py": "",
    "fastapi/testclient.py": _CLIENT,
    "sandbox/__init__.py": "",
    "sandbox/runners.py": _MODELS,
    "sandbox/server/__init__.py": "",
    "sandbox/server/sandbox_api.py": _MODELS,
    "sandbox/server/online_judge_api.py": _MODELS,
    "sandbox/server/server.py": _MODELS,
    "sandbox/datasets/__init__.py": "",
    "sandbox/datasets/types.py": _MODELS,
}


def main(checkout: Path, arguments: list[str]) -> int:
    """Runs the files of a checkout; gives pytest's exit code."""
    tests = checkout / "sandbox" / "tests"
    files = [tests / "runners" / f"test_{name}.py" for name in RUNNERS]
    files += [tests / "datasets" / f"test_{name}.py" for name in DATASETS]
    files = [file for file in files if file.is_file()]
    if not files:
        print(f"{checkout} is no checkout of SandboxFusion: FUSION=DIR", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as name, serving(image="air-code") as served:
        folder = Path(name)
        for path, text in _MODULES.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
        for file in files:
            shutil.copy(file, folder / file.name)
        health = httpx.get(f"{served.url}/health").json()["sandboxfusion"]
        print(f"{len(files)} files against {', '.join(health['languages'])}", flush=True)
        path = os.pathsep.join([name, str(Path(__file__).parents[3])])
        command = [sys.executable, "-m", "pytest", "-c", os.devnull, "--rootdir", name, "-q", "-ra"]
        options = ["-o", "asyncio_mode=auto", "-p", "no:cacheprovider", *arguments]
        env = os.environ | {"AIR_SERVE_URL": served.url, "PYTHONPATH": path}
        return subprocess.run([*command, *options], cwd=name, env=env, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve(), sys.argv[2:]))
