"""The clients of Agent0 and verl-tool send their requests to `POST /get_observation`, and read the responses.

The bodies are facts about their programs: names and shapes of fields, and short values of their tests. A test
names the file and the function.

| name here | repository | commit |
|---|---|---|
| Agent0 | aiming-lab/Agent0, folder Agent0/executor_train | 3cf8bfeb997e54235a25ae3724ddc32cbc7204d1 |
| verl-tool | TIGER-AI-Lab/verl-tool | 980962b4b8af660eb96421df9ecf603a2f790570 |

Both servers declare the same request (Agent0's verl_tool/servers/serve.py, verl-tool's
verl_tool/servers/tool_server.py, class `ActionRequest`): `trajectory_ids` and `actions`, and optionally
`extra_fields`, `finish` and `is_last_step`; other fields are ignored. The response (`AgentResponse`) has
`observations`, `dones`, `valids` and `processing_time_ms`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.tools_server import BOX, Served, serving

CALL = '<tool_call>{"name": "count", "arguments": {}}</tool_call>'
COUNTING = '''
from air.tools import tool

class State:
    def __init__(self, context):
        self.count, self.fields = 0, dict(context.fields)

@tool(state=State)
def count(state) -> str:
    """Counts."""
    state.count += 1
    return f"{state.count} {state.fields}"
'''
MAX_TURNS = 4
INVALID = ("", None, "the action asks for none of the tools")
"""An action without a call, as the trainers read it."""


@pytest.fixture
def counting(tmp_path: Path) -> str:
    (tmp_path / "counting.py").write_text(COUNTING)
    return f"{tmp_path / 'counting.py'}:count"


def counted(number: int) -> tuple[str, None, None]:
    """The result of a call, as the trainers read it."""
    return f"\n<tool_response>\n{number} {{}}\n</tool_response>\n", None, None


async def sent(served: Served, body: dict[str, Any]) -> list[tuple[Any, int, int]]:
    """Sends a body, and reads the response as both trainers do: Agent0 in llm_agent/manager.py, verl-tool in
    agent_loop/verltool_agent_loop.py, `interact_with_tool_server`. An observation is a text, or an object
    with the text `obs` and maybe a number `reward` and an `invalid_reason`."""
    response = await served.http.post("/get_observation", json=body)
    assert response.status_code == 200, response.text
    answer = response.json()
    count = len(body["trajectory_ids"])
    assert len(answer["observations"]) == len(answer["dones"]) == len(answer["valids"]) == count
    assert float(answer["processing_time_ms"]) >= 0
    read = []
    for one in answer["observations"]:
        seen = one if isinstance(one, dict) else {"obs": one}
        assert isinstance(seen["obs"], str)
        assert "image" not in seen
        assert "audio" not in seen
        read.append((seen["obs"], seen.get("reward"), seen.get("invalid_reason")))
    dones, valids = ([int(flag) for flag in answer[name]] for name in ("dones", "valids"))
    return list(zip(read, dones, valids, strict=True))


def turn(step: int, actions: dict[str, tuple[str, bool]], **extra_info: Any) -> dict[str, Any]:
    """The body of Agent0's trainer in turn `step`, from 0 (llm_agent/manager.py, `run_llm_loop_async` and
    `interact_with_tool_server`). `actions` has the reply of each active trajectory, and whether it stopped at
    an action: if not, the trainer finishes the trajectory."""
    turns = {"current_step": step, "max_turns": MAX_TURNS, "turns_left": max(0, MAX_TURNS - step)}
    return {
        "trajectory_ids": list(actions),
        "actions": [reply for reply, _ in actions.values()],
        "finish": [not acts for _, acts in actions.values()],
        "is_last_step": [step == MAX_TURNS] * len(actions),
        "extra_fields": [{**extra_info, **turns} for _ in actions],
    }


async def test_a_rollout_of_agent0s_trainer(counting: str) -> None:
    """Trajectories leave the batch when they are done; the last turn ends the others."""
    async with serving(counting) as served:
        acts = (CALL, True)
        both = await sent(served, turn(0, {"a": acts, "b": acts}, split="train", index=3))
        assert both == [(counted(1), 0, 1)] * 2
        both = await sent(served, turn(1, {"a": ("It is \\boxed{4}.", False), "b": acts}))
        assert both == [(("", None, None), 1, 0), (counted(2), 0, 1)]
        assert await sent(served, turn(2, {"b": ("no call", True)})) == [(INVALID, 0, 0)]
        assert await sent(served, turn(3, {"b": acts})) == [(counted(3), 0, 1)]
        assert served.server.sessions.taken == 1
        assert await sent(served, turn(MAX_TURNS, {"b": acts})) == [(counted(4), 0, 1)]
        assert served.server.sessions.taken == 0


async def test_agent0s_trainer_asks_before_the_first_turn_and_closes_what_is_too_long(
    counting: str,
) -> None:
    """llm_agent/manager.py: the option `call_tool_first` sends empty actions, without `extra_fields` if the
    rows have no `extra_info`; `close_traj_tool_threads` sends none either."""
    async with serving(counting) as served:
        ids, flags = ["a", "b"], {"finish": [False] * 2, "is_last_step": [False] * 2}
        first = {"trajectory_ids": ids, "actions": ["", ""], **flags}
        assert await sent(served, first) == [(INVALID, 0, 0)] * 2
        await sent(served, turn(0, dict.fromkeys(ids, (CALL, True))))
        assert served.server.sessions.taken == 2
        flags = {"finish": [True] * 2, "is_last_step": [True] * 2}
        close = {"trajectory_ids": ids, "actions": ["", ""], **flags}
        assert await sent(served, close) == [(("", None, None), 1, 0)] * 2
        assert served.server.sessions.taken == 0


async def test_agent0s_evaluation_service(counting: str) -> None:
    """eval_service/model_service.py, `call_tool_server_async`: three fields. `post_process_observations`
    needs texts, and empty ones for finished trajectories."""
    async with serving(counting) as served:
        ids = ["8c1d7f66-37a4-4d52-9a0d-0a6a3b1de2f4", "d0a8a3c4-5f0e-4b6e-8a5e-2f7f3f3b9e10"]
        body = {"trajectory_ids": ids, "actions": [CALL, "So it is 4."], "finish": [False, True]}
        answer = (await served.http.post("/get_observation", json=body)).json()
        assert answer["observations"] == [counted(1)[0], ""]
        assert (answer["dones"], answer["valids"]) == ([False, True], [True, False])


async def test_verl_tools_agent_loop_sends_one_trajectory(counting: str) -> None:
    """agent_loop/verltool_agent_loop.py, `interact_with_tool_server` and `close_traj_tool_threads`: lists of
    one entry. `extra_fields` has the row's `extra_info`, here that of examples/data_preprocess/deepmath.py,
    and `images`; tools see none of it."""
    async with serving(counting) as served:
        one = {"trajectory_ids": ["0f3c"], "finish": [False], "is_last_step": [False]}
        extra = {"split": "train", "index": 7, "question": "2 + 2?", "images": ["data:image/png;,"]}
        for number in (1, 2):
            body = one | {"actions": [CALL], "extra_fields": [extra]}
            assert await sent(served, body) == [(counted(number), 0, 1)]
        close = one | {"actions": [""], "finish": [True], "is_last_step": [True]}
        assert await sent(served, close) == [(("", None, None), 1, 0)]
        assert served.server.sessions.taken == 0


HELLO = "print('Hello from Python!')"
BODIES: list[tuple[dict[str, Any], str]] = [
    # verl_tool/servers/tests/test_base.py: two fields
    ({"actions": ["test-action"]}, ""),
    # test_python_code_tool.py
    ({"actions": [f"<python>{HELLO}</python> ..."]}, "\n<result>\nHello from Python!\n</result>\n"),
    ({"actions": ["<python>import sys\n\nprint(f'Arguments: {sys.argv[1:]}')</python> ..."]},
     "\n<result>\nArguments: []\n</result>\n"),
    ({"actions": [f"```python\n{HELLO}\n``` ..."]}, "\n```result\nHello from Python!\n```\n"),
    ({"actions": [f"```<python>\n{HELLO}</python> ... <python>print('Hello again!')</python>``` ..."]},
     "\n<result>\nHello from Python!\nHello again!\n</result>\n"),
    # test_bash_terminal_tool.py
    ({"actions": ["<bash>echo 'First block'</bash>\n<bash>echo 'Second block'</bash>"]},
     "\n<o>\nFirst block\nSecond block\n</o>\n"),
    ({"actions": ["```terminal\necho 'Testing terminal format'\n```"]},
     "\n```output\nTesting terminal format\n```\n"),
    # test_python_oj_tool.py: a further field, which neither server knows
    ({"actions": ["```python\nprint(int('4') * 2)\n```"], "public_tests": ['{"inputs": ["4"]}']},
     "\n```result\n8\n```\n"),
]  # fmt: skip


async def test_the_requests_of_their_tests(tmp_path: Path) -> None:
    """Agent0's verl_tool/servers/tests: test_base.py and test_python_oj_tool.py send no `extra_fields`,
    test_python_code_tool.py and test_bash_terminal_tool.py an empty object for each action."""
    file = tmp_path / "tools.toml"
    names = ("code_interpreter", "bash")
    rows = ", ".join(f'{{name = "{name}", seconds = 30.0, box = {BOX}}}' for name in names)
    file.write_text(f"tools = [{rows}]\n")
    async with serving(str(file), session_seconds=600) as served:
        for number, (fields, observation) in enumerate(BODIES):
            body = {"trajectory_ids": [f"test-python-{number:03}"], **fields}
            if "public_tests" not in fields and number:
                body["extra_fields"] = [{}]
            ((seen, _, _), done, valid), *_ = await sent(served, body)
            assert (seen, done, valid) == (observation, 0, int(bool(observation))), fields
