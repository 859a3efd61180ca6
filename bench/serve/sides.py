"""Starts the servers that `bench/serve` compares, each as a process of its own."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import tomllib
import urllib.error
import urllib.request
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

OURS = "air serve"
BUILD = Path("build/sandboxfusion")
START_SECONDS = 180.0


@contextmanager
def ours(image: str, *flags: str) -> Iterator[str]:
    """Context manager: runs `air serve sandbox` with its default settings and the given flags, and yields its
    URL."""
    argv = [sys.executable, "-m", "air.cli.main", "serve", "sandbox", "--port", "0"]
    BUILD.parent.mkdir(exist_ok=True)
    with (BUILD.parent / "bench-serve.log").open("w") as log:
        process = subprocess.Popen(
            [*argv, "--image", image, *flags], stdout=subprocess.PIPE, stderr=log, text=True
        )
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line.startswith("serving on "):
                sys.exit(f"our server did not start: see {log.name}")
            yield line.split()[-1]
        finally:
            process.terminate()
            process.wait()


@contextmanager
def original(checkout: Path) -> Iterator[str]:
    """Context manager: runs the original SandboxFusion server from a checkout, as the checkout's `make run`
    starts it, and yields its URL."""
    if not (checkout / "sandbox/server/server.py").is_file():
        sys.exit(
            f"{checkout}: not a checkout of SandboxFusion (sandbox/server/server.py is missing)"
        )
    source, python = prepared(checkout)
    port = _free_port()
    argv = [str(python), "-m", "uvicorn", "sandbox.server.server:app", "--port", str(port)]
    with (BUILD / "server.log").open("w") as log:
        # Its programs' Python is the one that it finds in PATH.
        env = os.environ | {"PATH": f"{python.parent}:{os.environ['PATH']}"}
        process = subprocess.Popen(argv, cwd=source, env=env, stdout=log, stderr=log)
        try:
            url = f"http://127.0.0.1:{port}"
            _await_answer(f"{url}/v1/ping", process)
            yield url
        finally:
            process.terminate()
            process.wait()


def prepared(checkout: Path) -> tuple[Path, Path]:
    """Returns a copy of a checkout of SandboxFusion, and the path of the Python in whose environment its
    packages are. The first call installs the packages."""
    root = BUILD.resolve()
    source, environment = root / "source", root / "venv"
    python = environment / "bin/python"
    if not (root / "ready").exists():
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(checkout, source, ignore=shutil.ignore_patterns(".git"))
        (source / "docs/build").mkdir(parents=True, exist_ok=True)  # it serves its documentation
        venv.create(environment, with_pip=True)
        wanted = tomllib.loads((source / "pyproject.toml").read_text())
        packages = [*_requirements(wanted["tool"]["poetry"]["dependencies"]), "numpy"]
        subprocess.run([python, "-m", "pip", "install", "-q", *packages], check=True)
        # It looks for conda above its Python, and activates an environment for the programs there.
        (root / "condabin").mkdir()
        (root / "bin").mkdir()
        (root / "bin/activate").write_text(f'PATH="{environment}/bin:$PATH"\n')
        (root / "ready").touch()
    return source, python


def _requirements(poetry: dict[str, object]) -> Iterator[str]:
    """Yields the dependencies of a poetry project as pip requirements."""
    for name, wanted in poetry.items():
        if name == "python":
            continue
        extras = f"[{','.join(wanted['extras'])}]" if isinstance(wanted, dict) else ""
        text = str(wanted["version"] if isinstance(wanted, dict) else wanted)
        if text.startswith("^"):  # up to the next change of the first number that is not 0
            low = [int(part) for part in text[1:].split(".")]
            place = next((at for at, part in enumerate(low) if part), 0)
            high = [*low[:place], low[place] + 1]
            text = f">={text[1:]},<{'.'.join(map(str, high))}"
        elif text[:1].isdigit():
            text = f"=={text}"
        yield f"{name}{extras}{text}"


def speaks_e2b(url: str) -> bool:
    """Whether the server of air at `url` supports E2B's protocol."""
    with urllib.request.urlopen(f"{url}/health") as answer:
        return b'"e2b"' in answer.read()


def boxes(url: str) -> tuple[int, int]:
    """Returns how many boxes the server of air at `url` has now, and how many it has started so far."""
    with urllib.request.urlopen(f"{url}/metrics") as answer:
        rows = [line.split() for line in answer.read().decode().splitlines()]
    values = {row[0]: row[1] for row in rows if len(row) == 2}
    return int(values["air_serve_boxes"]), int(values["air_serve_boxes_started"])


def _await_answer(url: str, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + START_SECONDS
    while True:
        try:
            urllib.request.urlopen(url).close()
            return
        except urllib.error.URLError:
            if process.poll() is not None or time.monotonic() > until:
                sys.exit(f"SandboxFusion did not start: see {BUILD}/server.log")
            time.sleep(0.1)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
