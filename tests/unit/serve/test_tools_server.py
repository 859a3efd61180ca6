"""`POST /get_observation`: real code in process boxes, state by trajectory, bounds, ends and failures."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from air.errors import ConfigError, MissingError
from air.serve.tools.settings import ToolsConfig
from air.serve.tools.verl_tool_protocol import LONGEST_REPLY
from tests.tools_server import BOX, Served, serving
from tests.until import until

COUNTING = '''
import asyncio
from air.errors import InfrastructureError
from air.tools import ToolError, finish, tool

OPEN, GO = [], asyncio.Event()

class State:
    def __init__(self, context):
        self.context, self.count = context, 0
        OPEN.append(self)
    def close(self):
        OPEN.remove(self)

@tool(state=State)
def count(state) -> str:
    """Counts."""
    state.count += 1
    return str(state.count)

@tool(state=State)
def fields(state) -> str:
    """Shows the public fields."""
    return str(dict(state.context.fields))

@tool
def wrong() -> str:
    """Is called wrongly."""
    raise ToolError("wrong")

@tool
def broken() -> str:
    """Fails by our fault."""
    raise InfrastructureError("the disk is full")

@tool
def done() -> str:
    """Ends the trajectory."""
    return finish("42")

@tool
async def wait() -> str:
    """Waits."""
    await GO.wait()
    return "waited"

@tool
def go() -> str:
    """Ends all calls of `wait`."""
    GO.set()
    return "gone on"

ALL = [count, fields, wrong, broken, done, wait, go]
'''


def call(name: str, arguments: str = "{}") -> str:
    return f'<tool_call>{{"name": "{name}", "arguments": {arguments}}}</tool_call>'


@pytest.fixture
def counting(tmp_path: Path) -> str:
    (tmp_path / "counting.py").write_text(COUNTING)
    return f"{tmp_path / 'counting.py'}:ALL"


@pytest.fixture
def boxed(tmp_path: Path) -> str:
    """A file that names tools with process boxes."""
    file = tmp_path / "tools.toml"
    names = ("code_interpreter", "bash")
    rows = ", ".join(f'{{name = "{name}", seconds = 30.0, box = {BOX}}}' for name in names)
    file.write_text(f"tools = [{rows}]\n")
    return str(file)


def shown(text: str) -> str:
    return f"\n<tool_response>\n{text}\n</tool_response>\n"


async def test_code_runs_in_a_box_and_each_trajectory_has_its_own_state(boxed: str) -> None:
    """`clients/test_verl_tool.py` names the sources of these bodies."""
    async with serving(boxed, session_seconds=600) as served:
        hello = "<python>print('Hello from Python!')</python> ..."
        body = {"trajectory_ids": ["test-python-001"], "actions": [hello], "extra_fields": [{}]}
        answer = (await served.http.post("/get_observation", json=body)).json()
        assert answer.keys() == {"observations", "dones", "valids", "processing_time_ms"}
        assert answer["observations"] == ["\n<result>\nHello from Python!\n</result>\n"]
        assert (answer["dones"], answer["valids"]) == ([False], [True])
        assert isinstance(answer["processing_time_ms"], float)
        both = await served.get(("a", "<python>x = 20</python>"), ("b", "<python>x = 1</python>"))
        assert both.json()["valids"] == [True, True]
        both = await served.get(("b", "<python>x + 1</python>"), ("a", "<python>x + 1</python>"))
        assert [text.strip("\n").split("\n")[1] for text in both.json()["observations"]] == [
            "2",
            "21",
        ]
        typo = (await served.observation("```<python>prnit('Hello from Python!')</python> ..."))[0]
        assert "NameError: name 'prnit' is not defined" in typo
        stdin = {"extra_fields": [{"stdin": "from the request"}]}
        assert (
            "from the request"
            in (await served.observation("<python>print(input())</python>", **stdin))[0]
        )
        await served.observation("<bash>cd / && export A=7</bash>", "test-bash-001")
        text = '```bash\necho "MY_VAR is: $A"; pwd\n```'
        assert await served.observation(text, "test-bash-001") == (
            "\n```output\nMY_VAR is: 7\n/\n```\n",
            False,
            True,
        )
        assert served.server.sessions.taken == 5


async def test_a_trainers_flow_ends_its_trajectories(counting: str) -> None:
    """The fields are those of Agent0's trainer; `clients/test_verl_tool.py` names the source."""
    async with serving(counting) as served:
        more: dict[str, Any] = {
            "finish": [False, False, True],
            "is_last_step": [False, False, False],
            "extra_fields": [{"current_step": 1, "max_turns": 4, "turns_left": 3}] * 3,
        }
        ids = ("a", "b", "c")
        answer = (await served.get(*((name, call("count")) for name in ids), **more)).json()
        assert answer["observations"] == [shown("1"), shown("1"), ""]
        assert (answer["dones"], answer["valids"]) == ([False, False, True], [True, True, False])
        assert served.server.sessions.taken == 2
        assert await served.observation("test-action", "a") == (
            {
                "obs": "",
                "invalid_reason": "the action asks for none of the tools",
                "available_tools": "count, fields, wrong, broken, done, wait, go",
            },
            False,
            False,
        )
        assert await served.observation(call("count"), "a", is_last_step=[True]) == (
            shown("2"),
            False,
            True,
        )
        assert await served.observation("", "b", finish=[True], is_last_step=[True]) == (
            "",
            True,
            False,
        )
        assert served.server.sessions.taken == 0
        assert (await served.observation(call("count"), "a"))[0] == shown("1")
        assert await served.observation(call("done"), "a") == ("", True, True)
        assert await served.observation(call("wrong"), "a") == (shown("wrong"), False, True)
        assert (await served.observation("", "a", extra_fields=[{"finish": True}]))[1]
        assert served.server.sessions.taken == 0
        assert served.metric("air_serve_tool_calls_total") == 6


async def test_tools_read_only_the_fields_that_are_public(counting: str) -> None:
    async with serving(counting, public=("level",)) as served:
        extra = {"extra_fields": [{"level": 7, "ground_truth": "secret"}]}
        assert (await served.observation(call("fields"), **extra))[0] == shown("{'level': 7}")


async def test_a_failure_of_the_server_is_no_observation(counting: str) -> None:
    async with serving(counting) as served:
        await served.observation(call("count"), "good")
        answer = await served.get(("good", call("count")), ("bad", call("broken")))
        assert (answer.status_code, answer.json()) == (503, {"detail": "the disk is full"})
        again = await served.get(("bad", call("count")))
        assert again.status_code == 410
        assert "the server failed in it" in again.json()["detail"]
        assert (await served.observation(call("count"), "good"))[0] == shown("3")
        await served.observation("", "bad", finish=[True])
        assert (await served.observation(call("count"), "bad"))[0] == shown("1")


async def test_new_trajectories_wait_for_room_all_at_once(counting: str) -> None:
    async with serving(counting, max_sessions=2, max_queued=1, queue_seconds=60) as served:
        await served.observation(call("count"), "a")
        pair = asyncio.create_task(served.get(("b", call("count")), ("c", call("count"))))
        await until(lambda: served.server.sessions.waiting == 1)
        full = await served.get(("d", call("count")))
        assert full.status_code == 503
        assert "1 requests wait" in full.json()["detail"]
        assert (await served.observation(call("count"), "a"))[0] == shown("2")  # it needs no room
        assert (await served.observation("no action", "d"))[2] is False
        await served.observation("", "a", finish=[True])
        assert (await pair).json()["observations"] == [shown("1")] * 2
        many = await served.get(*((str(n), call("count")) for n in range(3)))
        assert many.status_code == 503
        assert "exceed the 2 of this server" in many.json()["detail"]
        assert served.metric("air_serve_queue_full_total") == 1


async def test_a_request_waits_only_so_long(counting: str) -> None:
    async with serving(counting, max_sessions=1, queue_seconds=0.05) as served:
        await served.observation(call("count"), "a")
        late = await served.get(("b", call("count")))
        assert (late.status_code, late.headers["retry-after"]) == (503, "1")
        assert served.server.sessions.waiting == 0
        await served.observation("", "a", finish=[True])
        assert (await served.observation(call("count"), "b"))[0] == shown("1")


@pytest.mark.parametrize("limit", ["idle_seconds", "session_seconds"])
async def test_time_ends_a_trajectory_and_its_client_learns_of_it(
    counting: str, limit: str
) -> None:
    async with serving(counting, **{limit: 0.05}) as served:
        await served.get(("a", call("count")))
        await until(lambda: not served.server.sessions.taken)
        answer = await served.get(("a", call("count")))
        assert answer.status_code == 410
        assert "its state is gone" in answer.json()["detail"]


async def test_a_client_that_leaves_ends_what_it_waits_for(counting: str) -> None:
    async with serving(counting) as served:
        request = asyncio.create_task(served.get(("a", call("wait"))))
        await until(lambda: served.metric("air_serve_tool_calls_total") == 1)
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)
        await until(lambda: not served.server.sessions.taken)
        assert (await served.get(("a", call("count")))).status_code == 410


@asynccontextmanager
async def begun_again(served: Served) -> AsyncIterator[asyncio.Task[httpx.Response]]:
    """Yields the running last call of a trajectory `a` that its client has finished meanwhile. Another
    trajectory `a`, which has counted to 1, is open."""
    call_of_first = asyncio.create_task(served.get(("a", call("wait")), is_last_step=[True]))
    await until(lambda: served.metric("air_serve_tool_calls_total") == 1)
    finish = asyncio.create_task(served.get(("a", ""), finish=[True]))
    await until(lambda: served.metric("air_serve_trajectories_total") == 1)
    assert (await served.observation(call("count"), "a"))[0] == shown("1")
    yield call_of_first
    assert (await finish).status_code == 200


async def test_the_end_of_a_call_ends_no_later_trajectory_with_its_id(counting: str) -> None:
    async with serving(counting) as served:
        async with begun_again(served) as call_of_first:
            await served.observation(call("go"), "other")
            assert (await call_of_first).json()["observations"] == [shown("waited")]
        assert (await served.observation(call("count"), "a"))[0] == shown("2")


async def test_a_client_that_leaves_ends_no_later_trajectory_with_its_id(counting: str) -> None:
    async with serving(counting) as served:
        async with begun_again(served) as call_of_first:
            call_of_first.cancel()
        await until(lambda: served.server.sessions.taken < 2)
        assert (await served.observation(call("count"), "a"))[0] == shown("2")


async def test_all_trajectories_end_with_the_server(counting: str) -> None:
    async with serving(counting) as served:
        for name in "abc":
            await served.observation(call("count"), name)
        sessions = served.server.sessions
        assert sessions.taken == 3
    assert sessions.taken == 0


MALFORMED: list[tuple[Any, str]] = [
    ("{", "JSON"),
    ({}, "trajectory_ids"),
    ({"trajectory_ids": [], "actions": []}, "trajectory_ids"),
    ({"trajectory_ids": ["a"], "actions": []}, "`actions` has 0 entries"),
    ({"trajectory_ids": ["a"], "actions": [7]}, "actions"),
    ({"trajectory_ids": ["a"], "actions": ["x"], "extra_fields": [{}, {}]}, "extra_fields"),
    ({"trajectory_ids": ["a", "a"], "actions": ["x", "y"]}, "an id twice"),
    ({"trajectory_ids": ["a" * 257], "actions": ["x"]}, "256 characters"),
    ({"trajectory_ids": ["a", "b", "c"], "actions": ["x"] * 3}, "exceed the 2 of a request"),
]


async def test_what_is_malformed_is_refused(counting: str) -> None:
    async with serving(counting, max_actions=2) as served:
        for body, text in MALFORMED:
            content = {"content": body} if isinstance(body, str) else {"json": body}
            answer = await served.http.post("/get_observation", **content)
            assert answer.status_code == 422, body
            assert text in answer.text


async def test_a_reply_without_end_is_no_action(counting: str) -> None:
    async with serving(counting) as served:
        long = call("count") + " " * LONGEST_REPLY
        assert (await served.observation(long))[2] is False


async def test_a_page_of_another_site_gets_nothing(counting: str) -> None:
    """A page can send such a request without asking: its content type is one that forms have."""
    body = (
        '{"trajectory_ids": ["a"], "actions": ["<tool_call>{\\"name\\": \\"count\\"}</tool_call>"]}'
    )
    async with serving(counting) as served:

        async def sent(origin: str) -> httpx.Response:
            headers = {"origin": origin, "content-type": "text/plain"}
            return await served.http.post("/get_observation", content=body, headers=headers)

        for origin in ("http://example.com", "null", "http://127.0.0.1.example.com", "http://["):
            assert (await sent(origin)).status_code == 403
        assert served.server.sessions.taken == 0
        answer = await sent("http://localhost:3000")
        assert answer.status_code == 200
        assert not any("access-control" in name for name in answer.headers)
        assert (await served.http.options("/get_observation")).status_code == 405


async def test_a_page_that_knows_the_token_may(counting: str) -> None:
    async with serving(counting, token="secret") as served:
        headers = {"origin": "http://example.com", "authorization": "Bearer secret"}
        body = {"trajectory_ids": ["a"], "actions": ["x"]}
        assert (await served.http.post("/get_observation", json=body)).status_code == 401
        assert (
            await served.http.post("/get_observation", json=body, headers=headers)
        ).status_code == 200


async def test_health_says_what_is_served(counting: str) -> None:
    async with serving(counting, "calculator", max_sessions=3) as served:
        await served.observation(call("calculator", '{"expression": "6 * 7"}'))
        health = (await served.http.get("/health")).json()
        assert health["tools"][-1] == "calculator"
        assert health["sessions"] == {"open": 1, "max": 3, "queued": 0}
        text = (await served.http.get("/metrics")).text
        assert 'air_serve_tool_calls_total{tool="calculator"} 1' in text
        assert "air_serve_trajectories 1" in text


def test_wrong_settings_are_named(tmp_path: Path, boxed: str) -> None:
    with pytest.raises(MissingError, match="did you mean `calculator`"):
        ToolsConfig(tools=("calculater",)).tool_set()
    with pytest.raises(ConfigError, match="--session-seconds"):
        ToolsConfig(tools=(boxed,), session_seconds=10_000).tool_set()
    (tmp_path / "none.toml").write_text("tools = []")
    with pytest.raises(ConfigError, match=r"none\.toml"):
        ToolsConfig(tools=(str(tmp_path / "none.toml"),)).tool_set()
    pooled = tmp_path / "pooled.py"
    pooled.write_text(
        "from air.tools import tool\n\n\n@tool(state=lambda: 0, pool_size=2)\n"
        'def look(state: int) -> str:\n    """Looks."""\n    return "seen"\n'
    )
    with pytest.raises(ConfigError, match="--max-sessions"):
        ToolsConfig(tools=(f"{pooled}:look",), max_sessions=3).tool_set()
    assert ToolsConfig(tools=(f"{pooled}:look",), max_sessions=2).tool_set().tools
    resources = tmp_path / "resources.py"
    resources.write_text(
        "from air.tools import ResourcePool, tool\n\n\n@tool(state=ResourcePool(int, 2, reset=id))\n"
        'def look(state: int) -> str:\n    """Looks."""\n    return "seen"\n'
    )
    with pytest.raises(ConfigError, match=r"--max-sessions.* 2 states .* ResourcePool's size"):
        ToolsConfig(tools=(f"{resources}:look",), max_sessions=3).tool_set()
    assert ToolsConfig(tools=(f"{resources}:look",), max_sessions=2).tool_set().tools
    with pytest.raises(ValueError, match="`model_url` and `model` belong together"):
        ToolsConfig(tools=("calculator",), model="m")
    config = ToolsConfig(tools=("calculator",), format="mlgym")
    tools = config.tool_set()
    with pytest.raises(ConfigError, match="--format"):
        config.action_format(tools)
