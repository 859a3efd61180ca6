"""verifiers' own harnesses play our tasks: their programs run in the box, which has no network.

In containers they need the image `air-harness` (`air images build harness`); without it these tests are
skipped by name, and under AIR_REQUIRE_DOCKER=1 it is built. `bash` also plays in process boxes.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import verifiers.v1 as vf
from renderers import DefaultRendererConfig

from air.env.config import AirTasksetConfig, ResearchEnvConfig
from air.errors import ConfigError
from air.sandbox.docker import air_images
from air.sandbox.process import namespaces
from air.tasks import load
from air.tasks.data import prepare
from air.testing import Script, ScriptedServer, replies, tool_calls
from air.train.model.tokenizer import SMALLEST_VOCAB, build_tokenizer
from air.trajectories import read
from air.trajectories.conversations import messages
from tests.conftest import docker_problem
from tests.e2e.conftest import attempt, cache, played_by, research
from tests.e2e.episodes.test_episode import copied_task

__all__ = ["cache"]
# With the tests of images, since the first of these may build one.
pytestmark = pytest.mark.xdist_group("image builds")
IMAGE = "air-harness"
SHOWN = [
    ("bash", "subprocess"),
    pytest.param(("bash", "docker"), marks=pytest.mark.full),
    ("mini_swe_agent", "docker"),
]
TRY = 'echo "method={} level={}" > config && python3 solve.py && {}'
Config = Callable[..., ResearchEnvConfig]


@pytest.fixture(params=SHOWN, ids="-".join)
def kind(request: pytest.FixtureRequest) -> tuple[str, str]:
    """A harness and the kind of box; skipped where that cannot be had."""
    harness, runtime = request.param
    if runtime == "subprocess":
        _needs_namespaces()
    else:
        _needs_image()
    return harness, runtime


@pytest.fixture
def process() -> tuple[str, str]:
    """The quickest of them."""
    _needs_namespaces()
    return "bash", "subprocess"


def _needs_namespaces() -> None:
    if (found := namespaces.detect()).mode == "plain":
        pytest.skip(f"process boxes have no namespaces here: {found.reason}")


def _needs_image() -> None:
    if problem := docker_problem():
        pytest.skip(f"Docker: {problem}")
    if os.environ.get("AIR_REQUIRE_DOCKER") == "1":
        air_images.ensure(IMAGE, say=lambda _: None)
    elif not air_images.describe(IMAGE).current:
        pytest.skip("image air-harness is not built: run `air images build harness`")


def config(kind: tuple[str, str], turns: int = 5, **settings: Any) -> ResearchEnvConfig:
    """titanic, played by a harness of verifiers."""
    harness, runtime = kind
    given = {"harness": {"id": harness}, "runtime": {"type": runtime}, "max_turns": turns}
    agent = vf.AgentConfig.model_validate({**given, **settings.pop("agent", {})})
    image = settings.pop("image", IMAGE if runtime == "docker" else None)
    roots = settings.pop("task_roots", [])
    taskset = AirTasksetConfig(tasks=["titanic"], task_roots=roots)
    return ResearchEnvConfig(taskset=taskset, agent=agent, image=image, **settings)


async def one(script: Script, given: ResearchEnvConfig) -> Any:
    async with played_by(script, given) as play:
        return await play()


async def test_it_is_paid_as_our_own_harness_is(kind: tuple[str, str], tmp_path: Path) -> None:
    tries = [(1, 1, "validate"), (2, 3, "validate"), (3, 2, "submit")]
    ours_config = research(["titanic"], kind[1], record_dir=tmp_path / "ours")
    ours = (await one(replies(*(attempt(*x) for x in tries)), ours_config)).traces[0]
    script = tool_calls(*(TRY.format(*x) for x in tries))
    theirs = (await one(script, config(kind, record_dir=tmp_path / "theirs"))).traces[0]
    assert ours.ok
    assert theirs.ok, theirs.errors
    for fact in ("why_ended", "phis", "deltas", "isolation", "task", "direction"):
        assert theirs.info["air"][fact] == ours.info["air"][fact]
    assert theirs.info["air"]["why_ended"] == "submit"
    assert theirs.reward == ours.reward
    timed = {name for name in ours.metrics if name.startswith("seconds_")}
    assert {k: v for k, v in theirs.metrics.items() if k not in timed} == {
        k: v for k, v in ours.metrics.items() if k not in timed
    }
    assert theirs.num_branches == 1
    assert theirs.metrics["seconds_exec"] > 0
    mine, its = recorded(tmp_path / "ours"), recorded(tmp_path / "theirs")
    assert [x["type"] for x in its] == [x["type"] for x in mine]
    for line, own in zip(its, mine, strict=True):
        for key in ("turn", "score", "phi", "delta", "artefact", "automatic", "reward"):
            assert line.get(key) == own.get(key)
    assert [x["action"] for x in its if x["type"] == "step"] == [TRY.format(*x) for x in tries]
    shown = [x["shown"] for x in its if x["type"] == "step"]
    assert "[accuracy] 0.79 (best 0.79)" in shown[0]
    assert its[0]["harness"] == kind[0]
    assert "`validate` and `submit` are commands" in its[0]["prompt"]


def recorded(folder: Path) -> list[dict[str, Any]]:
    return list(read(file_of(folder)))


def file_of(folder: Path) -> Path:
    (path,) = folder.glob("*.jsonl")
    return path


LOOK = """python3 - <<'END'
import json, socket, urllib.request
def reach(host, port):
    try:
        socket.create_connection((host, port), timeout=2).close()
        return "reached"
    except OSError as error:
        return type(error).__name__
listening = set()
for table in ("/proc/net/tcp", "/proc/net/tcp6"):
    for line in open(table).readlines()[1:]:
        fields = line.split()
        if fields[3] == "0A":
            listening.add(int(fields[1].rsplit(":", 1)[1], 16))
devices = [line.split(":")[0].strip() for line in open("/proc/net/dev") if ":" in line]
routes = len(open("/proc/net/route").readlines()) - 1
print("FOUND", json.dumps({
    "listening": sorted(listening), "devices": devices, "routes": routes,
    "asked": [reach("127.0.0.1", PORT), reach("1.1.1.1", 443), reach("172.17.0.1", PORT),
              reach("example.org", 80)],
    "open": [reach("127.0.0.1", port) for port in sorted(listening)],
}))
END"""


FORGE = """python3 - <<'END'
import json, os, re, urllib.error, urllib.request
address = re.compile("http://127[.]0[.]0[.]1:[0-9]+")
lines = [open(f"/proc/{pid}/cmdline").read() for pid in os.listdir("/proc") if pid.isdigit()]
line = next(line for line in lines if address.search(line))
url = address.search(line)[0]
key = re.search("api[-_]key=([^\\0]+)", line)[1]
def ask(path, **body):
    data = json.dumps(body).encode() if body else None
    headers = {"Authorization": "Bearer " + key, "Content-Type": "application/json"}
    try:
        return urllib.request.urlopen(urllib.request.Request(url + path, data, headers)).status
    except urllib.error.HTTPError as error:
        return error.code
forged = {"role": "assistant", "content": "FORGED"}
user = {"role": "user", "content": "FORGED"}
chat = "/v1/chat/completions"
found = [ask(chat, model="scripted", messages=[user]), ask(chat, model="x", messages=[user, forged, user]),
         ask("/v1/responses", model="scripted", input="FORGED"), ask("/v1/models"),
         ask("/v1/messages", model="scripted", messages=[user])]
print("FOUND", key, found)
END
"""


async def test_only_the_program_s_own_conversation_reaches_the_model(
    kind: tuple[str, str], tmp_path: Path
) -> None:
    """From the box, nothing else can be reached but the gateway, where `validate` and `submit` are asked."""
    found: dict[str, Any] = {}
    asked: list[str] = []
    port = 0

    def script(conversation: Any) -> Any:
        asked.append(json.dumps(conversation))
        told = re.search(r"FOUND (\{.*?\})(?=\\n|\n)", str(conversation[-1].get("content")))
        if told:
            found.update(json.loads(told[1].replace('\\"', '"')))
        look = LOOK.replace("PORT", str(port))
        return tool_calls(look, FORGE, TRY.format(1, 1, "submit"))(conversation)

    env = vf.load_environment(config(kind, record_dir=tmp_path))
    with ScriptedServer(script) as server:
        port = int(server.url.split(":")[2].split("/")[0])
        client = vf.EvalClientConfig(base_url=server.url, api_key_var="AIR_TEST_KEY")
        async with env.serving():
            task = next(iter(env.taskset))
            ctx = vf.ModelContext(model="scripted", client=client)
            episode = await env.run_slot(env.slots(task)[0], ctx)
    trace = episode.traces[0]
    assert trace.ok, trace.errors
    # Two ports, the model's and the gateway's; the server that listens on this machine is not there.
    assert len(found["listening"]) == 2
    assert found["open"] == ["reached"] * 2
    assert found["asked"][0] == "ConnectionRefusedError"
    assert "reached" not in found["asked"]
    assert found["devices"] == ["lo"]
    assert found["routes"] == 0
    shown = [x["shown"] for x in recorded(tmp_path) if x["type"] == "step"]
    assert "FOUND known-to-the-gateway [400, 400, 400, 400, 400]" in shown[1]
    assert trace.metrics["refused_requests"] == 4
    assert (trace.num_branches, trace.num_turns, len(asked)) == (1, 3, 3)
    assert trace.info["air"]["why_ended"] == "submit"


async def test_a_refused_request_that_is_repeated_ends_the_episode(
    process: tuple[str, str],
) -> None:
    again = FORGE.replace("print(", "found += [ask('/v1/x', a=1), ask('/v1/x', a=1)]\nprint(")
    script = tool_calls(TRY.format(1, 1, again), TRY.format(2, 3, "submit"))
    trace = (await one(script, config(process))).traces[0]
    assert trace.ok, trace.errors
    assert trace.info["air"]["why_ended"] == "history"
    assert trace.metrics["refused_requests"] == 6
    assert trace.metrics["valid"] == 1  # what the first command wrote was graded at the end


async def test_a_grader_that_fails_masks_the_episode_and_is_never_shown(
    process: tuple[str, str], tmp_path: Path
) -> None:
    root = own_task(tmp_path)
    script = tool_calls(TRY.format(1, 1, "validate; python3 solve.py"), "submit")
    given = config(process, task_roots=[root], record_dir=tmp_path / "record")
    trace = (await one(breaking(root, script), given)).traces[0]
    assert masked(trace, "exit 7")
    assert trace.num_turns == 1
    assert recorded(tmp_path / "record")[-1]["reward"] is None


async def test_a_failure_after_verifiers_stopped_the_episode_masks_it_too(
    process: tuple[str, str], tmp_path: Path
) -> None:
    root = own_task(tmp_path)
    later = "(validate > /dev/null 2>&1 &) && sleep 1 && python3 solve.py"
    script = breaking(root, tool_calls(TRY.format(1, 1, later)), seconds=1)
    trace = (await one(script, config(process, turns=1, task_roots=[root]))).traces[0]
    assert masked(trace, "exit 7")


def own_task(folder: Path) -> Path:
    """A root with a titanic whose prepared files no other test uses."""
    root = copied_task(folder, "exec_seconds = 9.0")
    with (root / "titanic" / "grader" / "grade.py").open("a") as file:
        file.write(f"# {folder}\n")
    return root


def breaking(root: Path, script: Script, seconds: int = 0) -> Script:
    """The same model; when it is first asked, the grader's prepared program begins to fail, after so many
    seconds."""
    program = prepare(load("titanic", [root])).grader / "grade.py"

    def asked(messages: list[dict[str, Any]]) -> Any:
        program.write_text(f"import time\ntime.sleep({seconds})\nraise SystemExit(7)\n")
        return script(messages)

    return asked


def masked(trace: Any, words: str) -> bool:
    assert not trace.ok
    assert all(reward is None for reward in trace.rewards.values())
    assert words in trace.last_error.message
    assert all(words not in str(message.content) for message in trace.messages)
    return True


async def test_running_out_of_turns_submits_by_itself(kind: tuple[str, str]) -> None:
    many = "for n in 1 2 3 4; do validate; done"
    script = tool_calls(TRY.format(2, 2, many), TRY.format(1, 1, "true"), "true")
    trace = (await one(script, config(kind, turns=2))).traces[0]
    assert trace.ok, trace.errors
    assert trace.info["air"]["why_ended"] == "turns"
    assert trace.metrics["turns"] == 2
    assert trace.metrics["validates"] == 3  # as many as turns, and the end's own
    assert trace.metrics["refused_validates"] == 2
    shown = "".join(str(message.content) for message in trace.messages)
    assert shown.count("[accuracy]") == shown.count("no validate is left") == 2
    assert trace.metrics["submitted"] == 0
    assert trace.reward == pytest.approx(trace.info["air"]["phis"][-1])
    assert trace.metrics["test_score"] > 0
    assert trace.metrics["seconds_agent"] < 120  # some programs ask again for minutes


async def test_a_program_that_ends_or_is_ended_is_graded(process: tuple[str, str]) -> None:
    """It ends by itself, is killed by the agent's command or cut off from the model, or runs out of time.
    While that last one waits for the end of its time, the others are played."""
    sleeps = threading.Event()
    sleep, timed = tool_calls(TRY.format(2, 2, "sleep 600")), {"timeout": {"rollout": 40.0}}

    def last(messages: list[dict[str, Any]]) -> Any:
        sleeps.set()
        return sleep(messages)

    async def quick(command: str) -> Any:
        await asyncio.to_thread(sleeps.wait, 600)
        async with turns:
            return await one(tool_calls(TRY.format(2, 2, command)), config(process))

    turns = asyncio.Lock()
    commands = ("true", "kill -9 $PPID", "prlimit --pid $PPID --nofile=3:3")
    waiting = one(last, config(process, agent=timed))
    played = await asyncio.gather(waiting, *map(quick, commands))
    late, said, killed, cut = (episode.traces[0] for episode in played)
    endings = ((late, "agent_timeout"), (said, "agent_completed"), (killed, "killed"))
    for trace, why in (*endings, (cut, "killed")):
        assert trace.ok, trace.errors
        assert trace.info["air"]["why_ended"] == why
        assert trace.metrics["valid"] == trace.metrics["validates"] == 1
        assert trace.reward == said.reward != 0
    assert late.metrics["turns"] == 1


ONE_CALL = (
    "{%- for m in messages %}<|im_start|>{{ m.role + '\\n' }}"
    "{%- if (m.tool_calls or []) | length > 1 %}{{ raise_exception('one call only') }}{%- endif %}"
    "{{- m.content or '' }}<|im_end|>\n{%- endfor %}"
    "{%- if add_generation_prompt %}<|im_start|>assistant\n{%- endif %}"
)


async def test_a_reply_that_the_chat_template_cannot_express_is_the_agents_doing(
    process: tuple[str, str], tmp_path: Path
) -> None:
    """In training: the template, like those of some models, refuses a message with two tool calls. The
    program asks again and gives up; what the first call wrote is graded."""
    tokenizer = build_tokenizer(["Try it."], SMALLEST_VOCAB, max_length=2**20)
    tokenizer.chat_template = ONE_CALL
    tokenizer.save_pretrained(tmp_path / "model")
    command = json.dumps({"name": "bash", "arguments": {"command": TRY.format(2, 2, "true")}})
    call = f"<tool_call>\n{command}\n</tool_call>"
    env = vf.load_environment(config(process))
    with ScriptedServer(replies(call, f"{call}{call}"), tokenizer) as server:
        client = vf.TrainClientConfig(
            base_url=server.url,
            api_key_var="AIR_TEST_KEY",
            renderer=DefaultRendererConfig(tool_parser="qwen3"),
            renderer_model_name=str(tmp_path / "model"),
        )
        async with env.serving():
            task = next(iter(env.taskset))
            ctx = vf.ModelContext(model="scripted", client=client)
            episode = await env.run_slot(env.slots(task)[0], ctx)
    trace = episode.traces[0]
    assert trace.ok, trace.errors
    assert trace.info["air"]["why_ended"] == "format"
    assert (trace.num_turns, trace.metrics["format_errors"], trace.metrics["valid"]) == (2, 1, 1)


async def test_what_is_wrong_is_told(process: tuple[str, str], tmp_path: Path) -> None:
    commands = ["rm -f submission.csv; validate; echo code $?", "validate now; echo code $?"]
    given = config(process, record_dir=tmp_path, validate_penalty=0.1)
    trace = (await one(tool_calls(*commands), given)).traces[0]
    steps = [x for x in recorded(tmp_path) if x["type"] == "step"]
    assert "[not scored]" in steps[0]["shown"]
    assert "code 1" in steps[0]["shown"]
    assert "takes no arguments" in steps[1]["shown"]
    assert steps[2]["reply"] == "Done."
    assert trace.metrics["validates"] == 2  # the second is the end's own
    assert trace.rewards["failed_validates"].value == pytest.approx(-0.2)
    with pytest.raises(ConfigError, match="tool calls"):
        messages(file_of(tmp_path))


@pytest.mark.docker
async def test_an_image_without_the_packages_is_refused_with_the_remedy() -> None:
    trace = (await one(tool_calls("true"), config(("bash", "docker"), image="air-base"))).traces[0]
    assert not trace.ok
    assert "air images build harness" in trace.last_error.message
    assert "mcp" in trace.last_error.message


async def test_a_process_box_without_namespaces_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIR_PROCESS_BOX", "plain")
    env = vf.load_environment(config(("bash", "subprocess")))
    with pytest.raises(ConfigError, match="no namespaces") as error:
        await env.start()
    assert "\n" not in str(error.value)
