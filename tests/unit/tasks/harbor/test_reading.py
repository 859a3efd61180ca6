"""Reading Harbor's task folders: fields, older spellings, files, digests, data sets, and what is refused."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from air.errors import ConfigError, MissingError, UsageError
from air.tasks.sources.harbor.datasets import find
from air.tasks.sources.harbor.folder import read
from air.tasks.sources.harbor.unsupported_features import refusals


def write(root: Path, toml: str = "", **files: str) -> Path:
    """Writes a task's folder; `files` are further files, with `__` for `/` and `_DOT_` for a dot."""
    usual = {
        "task.toml": toml,
        "instruction.md": "Write hello into hello.txt.\n",
        "environment/Dockerfile": "FROM air-base\n",
        "tests/test.sh": "echo 1 > /logs/verifier/reward.txt\n",
    }
    more = {name.replace("__", "/").replace("_DOT_", "."): text for name, text in files.items()}
    for name, text in (usual | more).items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_the_defaults_are_harbors(tmp_path: Path) -> None:
    config = read(write(tmp_path)).config
    assert (config.agent.timeout_sec, config.verifier.timeout_sec) == (None, 600.0)
    environment = config.environment
    assert (environment.network, environment.cpus, environment.memory_mb) == ("public", None, None)
    assert (config.verifier_mode(), environment.build_timeout_sec) == ("shared", 600.0)


def test_older_spellings_mean_the_same(tmp_path: Path) -> None:
    toml = (
        'version = "1.0"\n[environment]\nmemory = "2G"\nstorage = "512M"\nallow_internet = false\n'
    )
    config = read(write(tmp_path, toml)).config
    environment = config.environment
    assert (config.schema_version, environment.memory_mb, environment.storage_mb) == (
        "1.0",
        2048,
        512,
    )
    assert environment.network == "no-network"


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        (
            "[agent]\ntimout_sec = 5",
            "there is no key `agent.timout_sec` — did you mean `agent.timeout_sec`",
        ),
        ("[environment]\nmemory = '2G'\nmemory_mb = 512", "contradict each other"),
        ("[environment]\nmemory = 'much'", "'much' is no size"),
        ("[environment]\nallowed_hosts = ['a.org']", 'needs network_mode = "allowlist"'),
        ("[task]\nname = 'alone'", "organisation/name"),
        ("artifacts = ['/a/../b']", "must not contain `..`"),
        (
            "[verifier]\nenvironment_mode = 'shared'\n[verifier.environment]\ncpus = 1",
            "contradicts",
        ),
        ("[[steps]]\nname = 'a'\n[[steps]]\nname = 'A'", "two steps have the name 'a'"),
        ("[[steps]]\nname = '../a'", "cannot be the name of a folder"),
        ("[[steps]]\nname = 'a'\nmin_reward = nan", "`steps.0.min_reward`: no reward reaches nan"),
        ("[[steps]]\nname = 'a'\nmin_reward = {reward = nan}", "no reward reaches nan"),
        ("schema_version = '2.0'", "`schema_version`"),
        ("[environment]\nmcp_servers = [{name = 'a', transport = 'http'}]", "needs url"),
    ],
)
def test_bad_fields_are_named(tmp_path: Path, toml: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(write(tmp_path, toml))
    assert message in str(caught.value)
    assert str(caught.value).startswith(f"{tmp_path}/task.toml: ")


def test_canary_lines_are_cut_only_at_the_beginning(tmp_path: Path) -> None:
    text = "<!-- a CANARY 123 -->\n# canary too\n\n\nDo it.\n# canary here stays\n"
    folder = read(write(tmp_path, instruction_DOT_md=text))
    assert folder.instruction() == "Do it.\n# canary here stays\n"


def test_steps_have_their_own_files_over_those_of_the_task(tmp_path: Path) -> None:
    files = {
        "steps__one__instruction_DOT_md": "First.",
        "steps__one__tests__test_DOT_sh": "one",
        "steps__one__workdir__setup_DOT_sh": "true",
        "steps__two__instruction_DOT_md": "Second.",
        "tests__helper": "shared",
    }
    toml = (
        "[[steps]]\nname = 'one'\n[[steps]]\nname = 'two'\nverifier.environment_mode = 'separate'\n"
    )
    folder = read(write(tmp_path, toml, **files))
    one, two = folder.config.steps
    assert (folder.instruction(one), folder.instruction(two)) == ("First.", "Second.")
    assert {name: path.read_text() for name, path in folder.tests(one).items()} == {
        "helper": "shared",
        "test.sh": "one",
    }
    assert folder.tests(two)["test.sh"] == folder.path / "tests/test.sh"
    assert list(folder.setup(one)) == ["setup.sh"]
    assert [folder.config.verifier_mode(step) for step in (one, two)] == ["shared", "separate"]


@pytest.mark.parametrize("missing", ["instruction.md", "tests/test.sh", "task.toml"])
def test_a_missing_file_is_named(tmp_path: Path, missing: str) -> None:
    (write(tmp_path) / missing).unlink()
    with pytest.raises(MissingError, match=missing):
        read(tmp_path)


@pytest.mark.parametrize("target", ["/etc/passwd", "..", "nowhere", "../tests"])
def test_links_that_lead_out_or_nowhere_or_around_are_refused(tmp_path: Path, target: str) -> None:
    folder = write(tmp_path / "task")
    (folder / "tests" / "link").symlink_to(target)
    if target == "..":
        (folder / "tests" / "link").unlink()
        (folder / "tests" / "link").symlink_to("../..")
    with pytest.raises(ConfigError, match="is a link"):
        read(folder)


def test_links_inside_the_folder_are_followed(tmp_path: Path) -> None:
    folder = write(tmp_path, environment__data="x")
    (folder / "tests" / "data").symlink_to("../environment/data")
    assert read(folder).tests()["data"].read_text() == "x"


def test_the_digest_covers_each_file_once(tmp_path: Path) -> None:
    folder = write(tmp_path, tests__deep__a_DOT_py="1", notes_DOT_txt="not a part")
    (folder / "tests" / "__pycache__").mkdir()
    (folder / "tests" / "__pycache__" / "a.pyc").write_text("compiled")
    names = [
        "environment/Dockerfile",
        "instruction.md",
        "task.toml",
        "tests/deep/a.py",
        "tests/test.sh",
    ]
    lines = [f"{n}\0{hashlib.sha256((folder / n).read_bytes()).hexdigest()}\n" for n in names]
    expected = hashlib.sha256("".join(lines).encode()).hexdigest()
    assert read(folder).digest == f"sha256:{expected}"


@pytest.mark.parametrize(
    ("toml", "files", "reason"),
    [
        (
            "",
            {"environment__docker-compose_DOT_yaml": "services: {}"},
            "environment/docker-compose.yaml:",
        ),
        ("[environment]\nos = 'Windows'", {}, "environment.os: windows"),
        ("[environment.tpu]\ntype = 'v4'\ntopology = '2x2'", {}, "environment.tpu:"),
        ("[environment]\ngpu_types = ['H100']", {}, "environment.gpu_types:"),
        ("[[artifacts]]\nsource = '/a'\nservice = 'db'", {}, "artifacts: the service 'db'"),
        (
            "[environment]\nnetwork_mode = 'no-network'\n"
            "[[environment.mcp_servers]]\nname = 'x'\nurl = 'http://x/'",
            {},
            "environment.mcp_servers: 'x': the agent's network does not open x:80",
        ),
        (
            "[[environment.mcp_servers]]\nname = 'x'\nurl = 'http://localhost:8000/mcp'",
            {},
            "environment.mcp_servers: 'x': localhost is an address",
        ),
        (
            "[[environment.mcp_servers]]\nname = 'x'\nurl = 'ftp://a.org/'",
            {},
            "environment.mcp_servers: 'x': 'ftp://a.org/' is no address",
        ),
        (
            "[[verifier.environment.mcp_servers]]\nname = 'x'\nurl = 'http://x/'",
            {},
            "verifier.environment.mcp_servers: only an agent",
        ),
        (
            "[[verifier.collect]]\ncommand = 'x'\nservice = 'db'",
            {},
            "verifier.collect: the service 'db'",
        ),
        ("", {"trajectory_DOT_json": "{}"}, "trajectory.json:"),
        (
            "[agent]\nnetwork_mode = 'allowlist'\nallowed_hosts = ['10.0.0.0/8']",
            {},
            "agent.allowed_hosts: '10.0.0.0/8'",
        ),
        (
            "[environment]\nnetwork_mode = 'allowlist'\nallowed_hosts = ['']",
            {},
            "environment.allowed_hosts: '' is not a host",
        ),
        ("[agent]\nuser = 'a b'", {}, "agent.user: 'a b' is not the name"),
        ("[verifier]\nuser = '1:1'", {}, "verifier.user: '1:1' is not the name"),
        ("[[verifier.collect]]\ncommand = 'x'\nuser = '-'", {}, "verifier.collect.user: '-'"),
        ("[environment]\nworkdir = 'app'", {}, "environment.workdir: 'app' is not an absolute"),
        ("[environment]\nworkdir = '/proc'", {}, "environment.workdir: '/proc' is a folder"),
        ("artifacts = ['/']", {}, "artifacts: '/' is never handed in"),
        ("artifacts = ['/logs/agent/x']", {}, "artifacts: '/logs/agent/x' is never handed in"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(
    tmp_path: Path, toml: str, files: dict[str, str], reason: str
) -> None:
    found = refusals(read(write(tmp_path, toml, **files)))
    assert [line[: len(reason)] for line in found] == [reason]


def test_a_plain_task_is_not_refused(tmp_path: Path) -> None:
    toml = "artifacts = ['/logs/artifacts', '/logs', 'a']\n[environment]\nworkdir = '/app/'\n"
    task = read(write(tmp_path, f"{toml}[agent]\nuser = 0\n"))
    assert refusals(task) == []
    assert task.config.environment.workdir == "/app"


def test_a_folder_of_folders_is_listed_without_reading(tmp_path: Path) -> None:
    write(tmp_path / "b", "not toml [")
    write(tmp_path / "a")
    assert [task.name for task in find(tmp_path)] == ["a", "b"]
    assert [task.name for task in find(tmp_path / "a")] == ["a"]
    with pytest.raises(MissingError, match="holds no Harbor task"):
        find(tmp_path / "a" / "tests")


def test_a_data_set_states_digests(tmp_path: Path) -> None:
    digest = read(write(tmp_path / "hello")).digest
    file = tmp_path / "dataset.toml"
    file.write_text(
        f'[dataset]\nname = "our/set"\n[[tasks]]\nname = "our/hello"\ndigest = "{digest}"\n'
    )
    [task] = find(file)
    assert task.read().digest == digest
    (tmp_path / "hello" / "tests" / "test.sh").write_text("exit 0\n")
    with pytest.raises(ConfigError, match="but the data set states"):
        task.read()


def test_a_registry_names_local_tasks(tmp_path: Path) -> None:
    write(tmp_path / "sets" / "hello")
    rows = [
        {"name": "ours", "version": "1", "tasks": [{"name": "hello", "path": "sets/hello"}]},
        {"name": "far", "version": "1", "tasks": [{"name": "x", "git_url": "u", "path": "x"}]},
    ]
    file = tmp_path / "registry.json"
    file.write_text(json.dumps(rows))
    [task] = find(tmp_path / "registry.json#ours")
    assert task.read().name == "hello"
    for name, message in (
        ("", "several data sets"),
        ("#far", "git repository"),
        ("#no", "no data set"),
    ):
        with pytest.raises(UsageError, match=message):
            find(Path(f"{file}{name}"))
