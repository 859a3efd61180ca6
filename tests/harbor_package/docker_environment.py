"""An environment of Harbor's package on the plain `docker` command, for machines without `docker compose`.

Runs in the environment that has Harbor. The contract is Harbor's `BaseEnvironment`; what is decided here is
only how containers are started, entered and copied to and from.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from pathlib import Path

from harbor.environments.base import BaseEnvironment, ExecResult
from harbor.environments.capabilities import (
    EnvironmentCapabilities,
    EnvironmentResourceCapabilities,
)
from harbor.environments.definition import (
    environment_content_hash,
    require_agent_environment_definition,
)
from harbor.models.trial.paths import EnvironmentPaths

TAG = "air-test-harbor"
_PROXIES = ("http_proxy", "https_proxy", "no_proxy")
_building: dict[str, asyncio.Lock] = {}


class DockerCommand(BaseEnvironment):
    """One container, started and entered with the `docker` command."""

    @staticmethod
    def type() -> str:
        return "docker-command"

    @property
    def capabilities(self) -> EnvironmentCapabilities:
        return EnvironmentCapabilities(disable_internet=True)

    @classmethod
    def resource_capabilities(cls) -> EnvironmentResourceCapabilities:
        return EnvironmentResourceCapabilities(
            cpu_limit=True, memory_limit=True, fractional_cpus=True
        )

    def _validate_definition(self) -> None:
        require_agent_environment_definition(
            self.environment_dir, docker_image=self.task_env_config.docker_image
        )

    async def start(self, force_build: bool) -> None:
        image = self.task_env_config.docker_image or await self._built()
        options = ["--network", "none"] if self._network_disabled else []
        if (cpus := self._effective_cpus) is not None:
            options += ["--cpus", str(cpus)]
        if (memory := self._effective_memory_mb) is not None:
            options += ["--memory", f"{memory}m"]
        for key, value in self._startup_env().items():
            options += ["--env", f"{key}={value}"]
        command = ["--entrypoint", "", image, "sh", "-c", "sleep infinity"]
        run = await docker("run", "--detach", "--init", *options, *command)
        self._container = run.stdout.strip()
        paths = EnvironmentPaths.for_os(self.os)
        folders = [paths.agent_dir, paths.verifier_dir, paths.artifacts_dir, paths.tests_dir]
        words = " ".join(map(str, folders))
        await self.exec(f"mkdir -p {words} && chmod 777 {words}", user="root", cwd="/")
        await self._upload_environment_dir_after_start()

    async def _built(self) -> str:
        image = f"{TAG}:{environment_content_hash(self.environment_dir)}"
        async with _building.setdefault(image, asyncio.Lock()):
            if (await docker("image", "inspect", image, check=False)).return_code:
                words = [w for n in _PROXIES if n in os.environ for w in ("--build-arg", n)]
                words += ["--network", "host", "--tag", image, str(self.environment_dir)]
                await docker("build", "--quiet", *words)
        return image

    async def stop(self, delete: bool) -> None:
        if container := getattr(self, "_container", ""):
            await docker("rm", "--force", container)

    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        words = ["exec"]
        if folder := cwd or self.task_env_config.workdir:
            words += ["--workdir", folder]
        for key, value in (self._merge_env(env) or {}).items():
            words += ["--env", f"{key}={value}"]
        if (resolved := self._resolve_user(user)) is not None:
            words += ["--user", str(resolved)]
        done = docker(*words, self._container, "bash", "-c", command, check=False)
        return await asyncio.wait_for(done, timeout_sec)

    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        await self._make_folder(str(Path(target_path).parent))
        await docker("cp", str(source_path), f"{self._container}:{target_path}")

    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        await self._make_folder(target_dir)
        await docker("cp", f"{source_dir}/.", f"{self._container}:{target_dir}")

    async def _make_folder(self, folder: str) -> None:
        await self.exec(f"mkdir -p '{folder}'", user="root", cwd="/")

    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        Path(target_path).parent.mkdir(parents=True, exist_ok=True)
        await docker("cp", f"{self._container}:{source_path}", str(target_path))

    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        with tempfile.TemporaryDirectory() as place:
            await docker("cp", f"{self._container}:{source_dir}/.", place)
            shutil.copytree(place, target_dir, symlinks=True, dirs_exist_ok=True)


async def docker(*words: str, check: bool = True) -> ExecResult:
    """Runs a docker command. Raises RuntimeError if it fails and `check` is true."""
    process = await asyncio.create_subprocess_exec(
        "docker",
        *words,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        out, err = await process.communicate()
    except asyncio.CancelledError:
        process.kill()
        await process.wait()
        raise
    code = process.returncode or 0
    stdout, stderr = out.decode(errors="replace"), err.decode(errors="replace")
    if check and code:
        raise RuntimeError(f"docker {words[0]} ended with {code}: {stderr.strip()[-2000:]}")
    return ExecResult(stdout=stdout, stderr=stderr, return_code=code)
