"""`air serve tools` as a process: agents that attack it from their boxes, and Ctrl-C."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from tests.docker.client import boxes_of
from tests.docker.serve.serving import Served, serving

pytestmark = [pytest.mark.docker, pytest.mark.xdist_group("serve-tools")]
RUN = f"serve-tools-{os.getpid()}"
TOOLS = """
[[tools]]
name = "code_interpreter"
seconds = 2.0
box = { limits = { memory_mb = 128, pids = 32, disk_mb = 16 } }

[[tools]]
name = "bash"
seconds = 2.0
box = { limits = { memory_mb = 128, pids = 32, disk_mb = 16 } }
"""
ATTACKS = {
    "processes": "<python>import os, signal\nos.kill(-1, signal.SIGKILL)</python>",
    "shell": "<bash>kill -9 -1; kill -9 1; kill -9 $PPID</bash>",
    "memory": "<python>x = []\nwhile True: x.append(bytearray(1 << 20))</python>",
    "forks": "<bash>f() { f | f & }; f; sleep 30</bash>",
    "disk": "<bash>cat /dev/zero > fill; mkfifo p; cat p</bash>",
    "time": "<python>import signal, time\nsignal.signal(2, signal.SIG_IGN)\ntime.sleep(1000)</python>",
    "output": "<python>print('x' * 50_000_000)</python>",
    "answers": "<python>import os\nfor n in range(9): os.write(1, b'{\"number\": 1}\\n')</python>",
    "end": "<python>import os\nos._exit(0)</python>",
    "stopped": "<bash>kill -STOP $PPID; kill -STOP -1</bash>",
}
"""What an agent may try against its box; none of it is the server's failure."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    file = tmp_path_factory.mktemp("tools") / "tools.toml"
    file.write_text(TOOLS)
    with serving(str(file), "--max-sessions", "3", what="tools", AIR_RUN=RUN) as it:
        yield it


def sent(server: Served, name: str, action: str, **more: Any) -> dict[str, Any]:
    """The answer to one action, which must succeed."""
    body = {"trajectory_ids": [name], "actions": [action], **more}
    answer = httpx.post(f"{server.url}/get_observation", json=body, timeout=300)
    assert answer.status_code == 200, answer.text
    return {key: value[0] for key, value in answer.json().items() if isinstance(value, list)}


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_agent_harms_only_itself(server: Served, attack: str) -> None:
    sent(server, "victim", "<python>secret = 42</python>")
    answer = sent(server, "attacker", ATTACKS[attack])
    assert answer["valids"] is True
    assert len(answer["observations"]) < 20_000
    assert "42" in sent(server, "victim", "<python>secret</python>")["observations"]
    sent(server, "attacker", "", finish=[True])
    assert "2" in sent(server, "attacker", "<bash>echo $((1 + 1))</bash>")["observations"]
    sent(server, "attacker", "", finish=[True])
    assert not [line for line in server.log() if line["event"] in ("error", "warning")]


def test_a_box_reaches_neither_the_server_nor_other_boxes(server: Served) -> None:
    port = urlsplit(server.url).port
    code = (
        "import socket\n"
        f"for host in ('127.0.0.1', '172.17.0.1', 'host.docker.internal'):\n"
        "    try:\n"
        f"        socket.create_connection((host, {port}), 2)\n"
        "        print('reached', host)\n"
        "    except OSError:\n"
        "        print('closed')"
    )
    text = sent(server, "attacker", f"<python>{code}</python>")["observations"]
    assert text.count("closed") == 3
    sent(server, "victim", "<bash>echo mine > /workspace/mine; pwd</bash>")
    seen = sent(server, "attacker", "<bash>ls -A /workspace /tmp; id -u; env</bash>")[
        "observations"
    ]
    assert "mine" not in seen
    assert "AIR_RUN" not in seen  # a variable of the server
    for name in ("victim", "attacker"):
        sent(server, name, "", finish=[True])


def test_ctrl_c_ends_every_box() -> None:
    run = f"{RUN}-end"
    with serving("code_interpreter", what="tools", AIR_RUN=run) as served:
        for name in "ab":
            sent(served, name, "<python>x = 1</python>")
        assert len(boxes_of(run)) == 2
        assert served.stop(signal.SIGINT) == 0
        assert boxes_of(run) == []
        assert [line["event"] for line in served.log()][-1] == "stop"
