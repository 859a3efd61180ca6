"""Defines the keys of `task.toml`, the settings file of a task in the format of Harbor (a framework that runs
agents on tasks in containers). It covers the schema versions 1.0 to 1.4 and older spellings of keys.

Harbor ignores unknown keys; air reports each unknown key as an error. The meaning and the default of each key
are those of Harbor 0.25. If Harbor sets no limit, air sets one of its own (see
`air.tasks.sources.harbor.boxes`). Values that air does not support are valid here; the module
`air.tasks.sources.harbor.unsupported_features` refuses them.
"""

from __future__ import annotations

import math
import posixpath
import re
import unicodedata
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from air.config import BaseConfig

SCHEMA_VERSIONS = ("1.0", "1.1", "1.2", "1.3", "1.4")
MAIN_SERVICE = "main"
VERIFIER_SECONDS = 600.0
"""Harbor's default time limit of a verifier (the tests of a task), in seconds. A step has this default even
if its task sets another limit."""

NetworkMode = Literal["public", "no-network", "allowlist"]
User = str | int | None
"""The name or the numeric id of a user of the container. None: a default user; the description of each key of
this type says which."""
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*/[A-Za-z0-9_][A-Za-z0-9_.-]*")
_SIZES = {"K": 1 / 1024, "M": 1, "G": 1024, "T": 1024**2}
_FORBIDDEN_IN_STEPS = re.compile(r'[<>:"/\\|?*\x00-\x1f\x7f]')


def _megabytes(size: str) -> int:
    """Returns the size in MiB that a string such as `2G` or `512M` states. Raises ValueError if the string is
    not a size."""
    text = size.strip().upper()
    try:
        number = float(text[:-1]) * _SIZES[text[-1:]]
    except (KeyError, ValueError):
        raise ValueError(f"{size!r} is no size such as 512M or 2G") from None
    if not (math.isfinite(number) and number >= 1):
        raise ValueError(f"{size!r} is no size of at least 1 MiB")
    return int(number)


class Network(BaseConfig):
    """Keys of `task.toml` that limit which network hosts a container can reach. They can stand in the
    sections `environment`, `agent` and `verifier`; the last two are the phases of a task."""

    network_mode: NetworkMode | None = None
    """`public`, `no-network` or `allowlist`. None in the section `agent` or `verifier`: the mode of the
    section `environment` applies. None in `environment`: `public`."""
    allowed_hosts: tuple[str, ...] | None = None
    """Host names, addresses or address ranges that can be reached in the mode `allowlist`; `*.name` stands
    for all host names that end in `.name`."""

    @model_validator(mode="after")
    def _hosts_need_the_mode(self) -> Network:
        if self.allowed_hosts and self.network_mode != "allowlist":
            raise ValueError('allowed_hosts needs network_mode = "allowlist"')
        return self


class Healthcheck(BaseConfig):
    """A command that runs repeatedly until it succeeds, before the agent begins."""

    command: str = Field(min_length=1)
    """The shell command; exit status 0 means ready."""
    interval_sec: Seconds = 5.0
    """Seconds between two attempts."""
    timeout_sec: Seconds = 30.0
    """Time limit of one attempt, in seconds."""
    start_period_sec: float = Field(0.0, ge=0, allow_inf_nan=False)
    """Length of the start period in seconds. Failures in this period do not count towards `retries`."""
    start_interval_sec: Seconds = 5.0
    """Seconds between two attempts in the start period."""
    retries: int = Field(3, ge=1)
    """Consecutive failures after which the environment counts as not ready."""


class McpServer(BaseConfig):
    """A server of the Model Context Protocol that the agent can use."""

    name: str = Field(min_length=1)
    """The server's name."""
    transport: Annotated[
        Literal["stdio", "sse", "streamable-http"],
        BeforeValidator(lambda value: "streamable-http" if value == "http" else value),
    ] = "sse"
    """The transport of the protocol. `stdio`: the server is a program that is started in the box (sandbox).
    `sse` and `streamable-http`: the server is reached over HTTP."""
    url: str | None = None
    """The server's address, unless `transport` is `stdio`."""
    command: str | None = None
    """The program to start, if `transport` is `stdio`."""
    args: tuple[str, ...] = ()
    """The arguments of the program `command`."""
    headers: dict[str, str] = Field(default_factory=dict)
    """Headers of each request to `url`; values may name variables as `${VAR}`."""

    @model_validator(mode="after")
    def _complete(self) -> McpServer:
        if self.transport == "stdio" and (not self.command or self.headers or self.url):
            raise ValueError('transport = "stdio" needs command, and takes no url and no headers')
        if self.transport != "stdio" and (not self.url or self.command or self.args):
            raise ValueError(f"transport = {self.transport!r} needs url, and takes no command")
        return self


class Tpu(BaseConfig):
    """A slice (part) of a pod of tensor processing units (TPUs)."""

    type: str = Field(min_length=1)
    """The kind of TPU."""
    topology: str = Field(pattern=r"^[1-9]\d*(x[1-9]\d*)+$")
    """The slice's shape, such as `2x4`."""


class Environment(Network):
    """The container in which the agent works, or in which a separate verifier (the tests, in a container of
    their own) runs."""

    docker_image: str | None = None
    """The name of an existing image. None: the image is built from the Dockerfile."""
    build_timeout_sec: Seconds = 600.0
    """Time limit of the image's build, in seconds."""
    os: Annotated[
        Literal["linux", "windows"],
        BeforeValidator(lambda value: value.lower() if isinstance(value, str) else value),
    ] = "linux"
    """The operating system of the container."""
    workdir: str | None = None
    """The folder in which commands start. None: the image's working directory."""
    env: dict[str, str] = Field(default_factory=dict)
    """Environment variables; `${VAR}` and `${VAR:-default}` stand for variables of the machine on which the
    task is run."""
    cpus: float | None = Field(None, gt=0, allow_inf_nan=False)
    """CPU cores. None: no limit in Harbor."""
    memory_mb: int | None = Field(None, ge=1)
    """Memory limit in MiB. None: no limit in Harbor."""
    storage_mb: int | None = Field(None, ge=1)
    """Disk limit in MiB. None: no limit in Harbor."""
    gpus: int | None = Field(None, ge=0)
    """Number of GPUs. None: no GPU."""
    gpu_types: tuple[str, ...] | None = None
    """Names of suitable GPU models. None: any model."""
    tpu: Tpu | None = None
    """The TPU slice that the container needs. None: no TPU."""
    mcp_servers: tuple[McpServer, ...] = ()
    """Servers of the Model Context Protocol for the agent."""
    skills_dir: str | None = None
    """A folder of the container with skills (instructions for kinds of work) for the agent: one subfolder for
    each skill, with a file SKILL.md."""
    healthcheck: Healthcheck | None = None
    """The command that checks whether the container is ready. None: the container needs no check."""

    @field_validator("workdir")
    @classmethod
    def _without_slash(cls, workdir: str | None) -> str | None:
        """Returns the folder's path in the form that boxes (sandboxes) take: `/app` for `/app/`."""
        return posixpath.normpath(workdir) if workdir else None

    @model_validator(mode="before")
    @classmethod
    def _older_spellings(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        data = dict(data)
        for old, new in (("memory", "memory_mb"), ("storage", "storage_mb")):
            size = data.pop(old, None)
            if size is None:
                continue
            megabytes = _megabytes(size) if isinstance(size, str) else size
            if data.setdefault(new, megabytes) != megabytes:
                raise ValueError(
                    f"{old} = {size!r} and {new} = {data[new]!r} contradict each other"
                )
        internet = data.pop("allow_internet", None)
        if internet is not None and not isinstance(internet, bool):
            raise ValueError(f"allow_internet must be true or false, not {internet!r}")
        if internet is not None and not ({"network_mode", "allowed_hosts"} & set(data)):
            data["network_mode"] = "public" if internet else "no-network"
        return data

    @property
    def network(self) -> NetworkMode:
        """The network mode of the environment; `public` if the key is absent, as in Harbor."""
        return self.network_mode or "public"


class Artifact(BaseConfig):
    """A file or folder of the agent's container that is copied into the container of a separate verifier (the
    tests, in a container of their own)."""

    source: str = Field(min_length=1)
    """The path of the file or folder in the agent's container, absolute or relative to the working
    directory."""
    destination: str | None = None
    """The path of a second copy, in the folder in which Harbor keeps the artefacts (collected files) of a run
    for people to look at. The verifier gets its copy at `source`."""
    exclude: tuple[str, ...] = ()
    """Patterns of files that are not copied, in the syntax of tar's `--exclude`."""
    service: str | None = None
    """The Docker Compose service from whose container the artefact (the file or folder) is copied. None: the
    agent's container."""

    @field_validator("source", "destination")
    @classmethod
    def _stays_inside(cls, path: str | None) -> str | None:
        if path is not None and ".." in PurePosixPath(path).parts:
            raise ValueError("the path must not contain `..`")
        return path

    @field_validator("destination")
    @classmethod
    def _relative(cls, path: str | None) -> str | None:
        if path is not None and (path.startswith("/") or "\\" in path):
            raise ValueError("the path must be relative, with forward slashes")
        return path or None


def _as_artifact(value: Any) -> Any:
    return {"source": value} if isinstance(value, str) else value


Artifacts = tuple[Annotated[Artifact, BeforeValidator(_as_artifact)], ...]


class Collect(BaseConfig):
    """A command that runs after the agent has ended, before its artefacts (the files to grade) are
    collected."""

    command: str = Field(min_length=1)
    """The shell command."""
    service: str = MAIN_SERVICE
    """The name of the Docker Compose service in whose container the command runs; `main` is the agent's
    container."""
    timeout_sec: Seconds = 60.0
    """Time limit of the command, in seconds."""
    user: User = None
    """The user that runs the command. None: the image's default user."""


class Agent(Network):
    """Settings of the agent: time limit, user and network access."""

    timeout_sec: Seconds | None = None
    """Time limit of the agent, in seconds. None: no limit in Harbor."""
    user: User = None
    """The user that runs the agent's commands. None: the image's default user."""


class Verifier(Network):
    """Settings of grading: where, as which user and how long the test script (Harbor's verifier) runs. A
    separate verifier has a container of its own."""

    timeout_sec: Seconds = VERIFIER_SECONDS
    """Time limit of the test script, in seconds."""
    env: dict[str, str] = Field(default_factory=dict)
    """Environment variables of the test script; `${VAR}` and `${VAR:-default}` stand for variables of the
    machine on which the task is run."""
    user: User = None
    """The user that runs the test script. None: the image's default user."""
    environment_mode: Literal["shared", "separate"] | None = None
    """Where the test script runs. `shared`: in the agent's container. `separate`: in a container of its own.
    None: `separate` if `environment` is given; otherwise a step takes the task's mode, and a task is
    `shared`."""
    environment: Environment | None = None
    """The settings of the container of a separate verifier. None: a container with the agent's settings."""
    collect: tuple[Collect, ...] = ()
    """Commands that run after the agent has ended, before its artefacts (the files to grade) are
    collected."""

    @model_validator(mode="after")
    def _shared_has_no_environment(self) -> Verifier:
        if self.environment_mode == "shared" and self.environment is not None:
            raise ValueError('environment_mode = "shared" contradicts [verifier.environment]')
        return self

    @property
    def mode(self) -> Literal["shared", "separate"] | None:
        """The value of `environment_mode`, or `separate` if only `environment` is given. None: neither key is
        given."""
        return self.environment_mode or ("separate" if self.environment else None)


class Solution(BaseConfig):
    """Settings of the reference solution."""

    env: dict[str, str] = Field(default_factory=dict)
    """Environment variables of `solution/solve.sh`; `${VAR}` and `${VAR:-default}` stand for variables of the
    machine on which the task is run."""


class Step(BaseConfig):
    """One of several steps of a Harbor task: a stage with its own instruction and grading. The step's files
    lie in `steps/NAME/`."""

    name: str
    """The step's name, which is also the name of its folder."""
    agent: Agent = Agent()
    """Settings of the agent in this step: time limit, user and network access."""
    verifier: Verifier = Verifier()
    """Settings of this step's grading."""
    min_reward: float | dict[str, float] | None = None
    """The smallest reward with which the task continues after this step: a threshold for the reward named
    `reward`, or thresholds by the name of a reward, which must all be reached. None: the task always
    continues."""
    healthcheck: Healthcheck | None = None
    """A command that must succeed before the agent begins this step. None: there is no check."""
    artifacts: Artifacts = ()
    """The artefacts (files and folders to grade) of this step, in addition to the task's artefacts."""

    @field_validator("min_reward")
    @classmethod
    def _can_be_reached(cls, value: float | dict[str, float] | None) -> Any:
        thresholds = value.values() if isinstance(value, dict) else [value or 0.0]
        if any(math.isnan(number) for number in thresholds):
            raise ValueError("no reward reaches nan; set a number, or leave the key out")
        return value

    @field_validator("name")
    @classmethod
    def _is_a_folder_name(cls, name: str) -> str:
        bad = not name.strip() or name in (".", "..") or name.endswith((".", " "))
        if bad or _FORBIDDEN_IN_STEPS.search(name) or len(name.encode()) > 255:
            raise ValueError(f"{name!r} cannot be the name of a folder on every system")
        return name


class Author(BaseConfig):
    """An author of a task."""

    name: str
    """The author's name."""
    email: str | None = None
    """The author's e-mail address."""


class Package(BaseConfig):
    """The description of a task as a package in Harbor's public registry of tasks."""

    name: str
    """The package's name, `organisation/name`."""
    version: str | None = Field(None, min_length=1)
    """The package's version."""
    description: str = ""
    """A description of the task for people."""
    authors: tuple[Author, ...] = ()
    """The authors of the task."""
    keywords: tuple[str, ...] = ()
    """Keywords for searches."""

    @field_validator("name")
    @classmethod
    def _has_two_parts(cls, name: str) -> str:
        if not _NAME.fullmatch(name) or ".." in name:
            raise ValueError(f"{name!r} is not of the form organisation/name")
        return name


class HarborConfig(BaseConfig):
    """The contents of a Harbor task's file `task.toml`."""

    schema_version: Literal["1.0", "1.1", "1.2", "1.3", "1.4"] = "1.4"
    """The version of the file's schema."""
    source: str | None = None
    """The origin of the task, as text for people."""
    task: Package | None = None
    """The description of the task as a package in Harbor's registry. None: the task is not a package."""
    metadata: dict[str, Any] = Field(default_factory=dict)
    """Any other information about the task, for people."""
    artifacts: Artifacts = ()
    """The files and folders of the agent's container that are copied into the container of a separate
    verifier (the tests, in a container of their own)."""
    agent: Agent = Agent()
    """Settings of the agent: time limit, user and network access."""
    verifier: Verifier = Verifier()
    """Settings of grading."""
    environment: Environment = Environment()
    """Settings of the agent's container."""
    solution: Solution = Solution()
    """Settings of the reference solution."""
    multi_step_reward_strategy: Literal["mean", "final"] | None = None
    """How the reward of a task in several steps is computed: as the mean over the steps, or as the reward of
    the last step. None: the mean."""
    steps: tuple[Step, ...] = ()
    """The steps of the task; empty if the task is not divided into steps."""

    @model_validator(mode="before")
    @classmethod
    def _older_spelling(cls, data: Any) -> Any:
        if isinstance(data, dict) and "version" in data:
            data = dict(data)
            version = data.pop("version")
            data.setdefault("schema_version", version)
        return data

    @field_validator("steps")
    @classmethod
    def _names_differ(cls, steps: tuple[Step, ...]) -> tuple[Step, ...]:
        keys = [unicodedata.normalize("NFC", step.name).casefold() for step in steps]
        if twice := next((key for key in keys if keys.count(key) > 1), None):
            raise ValueError(f"two steps have the name {twice!r}, apart from upper and lower case")
        return steps

    def verifier_mode(self, step: Step | None = None) -> Literal["shared", "separate"]:
        """Returns whether Harbor would run the tests in the agent's container (`shared`) or in a container of
        their own (`separate`), for a step or, if `step` is None, for a task without steps."""
        of_step = None if step is None else step.verifier.mode
        return of_step or self.verifier.mode or "shared"
