"""What replies ask for, and how observations are shown: the forms that verl-tool's server has."""

from __future__ import annotations

import time

import pytest

from air.serve.tools.verl_tool_calls import ParsedCall, TrajectoryEnd, read

TOOLS = ("code_interpreter", "bash", "search", "sql", "calculator")
HELLO = "print('Hello from Python!')"
PYTHON = [
    (f"<python>{HELLO}</python> ...", HELLO, "\n<result>\nX\n</result>\n"),
    (f"```python\n{HELLO}\n``` ...", HELLO, "\n```result\nX\n```\n"),
    (f"```\npython\n{HELLO}\n```", HELLO, "\n<result>\nX\n</result>\n"),
    (f"```python\n{HELLO}\n```\n```output", HELLO, "\nX\n```\n"),
    (f"<python>{HELLO}</python>\n<result>", HELLO, "\nX\n</result>\n"),
    (
        f"<tool_call><python>{HELLO}</python></tool_call>",
        HELLO,
        "\n<tool_response>\n```result\nX\n```\n</tool_response>\n",
    ),
    (
        f"```<python>\n{HELLO}</python> ... <python>print('Hello again!')</python>```",
        f"{HELLO}\nprint('Hello again!')",
        "\n<result>\nX\n</result>\n",
    ),
]
BASH = [
    ("<bash>echo 'Hello from Bash!'</bash>", "\n<o>\nX\n</o>\n"),
    ("```bash\necho 'Hello from Bash!'\n```", "\n```output\nX\n```\n"),
    ("```shell\necho 'Hello from Bash!'\n```", "\n```output\nX\n```\n"),
    ("```terminal\necho 'Hello from Bash!'\n```", "\n```output\nX\n```\n"),
    ("```sh\necho 'Hello from Bash!'\n```\n```output", "\nX\n```\n"),
]


@pytest.mark.parametrize(("reply", "code", "shown"), PYTHON)
def test_python(reply: str, code: str, shown: str) -> None:
    call = read(reply, TOOLS)
    assert isinstance(call, ParsedCall)
    assert (call.tool, call.arguments) == ("code_interpreter", {"code": code})
    assert call.format_observation("X") == shown


@pytest.mark.parametrize(("reply", "shown"), BASH)
def test_bash(reply: str, shown: str) -> None:
    call = read(reply, TOOLS)
    assert isinstance(call, ParsedCall)
    assert (call.tool, call.arguments) == ("bash", {"command": "echo 'Hello from Bash!'"})
    assert call.format_observation("X") == shown


def test_search_and_sql() -> None:
    search = read("<think>no</think><search> capital </search>", TOOLS)
    assert isinstance(search, ParsedCall)
    assert (search.tool, search.arguments) == ("search", {"query": "capital"})
    assert search.format_observation("Doc 1\n") == "\n\n<information>Doc 1</information>\n\n"
    sql = read("<sql>a</sql><sql> SELECT 1 </sql>", TOOLS, {"turns_left": 2})
    assert isinstance(sql, ParsedCall)
    assert (sql.tool, sql.arguments) == ("sql", {"query": "SELECT 1"})
    assert sql.format_observation("1") == (
        "\n\n<observation>1\n<reminder>You have 2 turns left to complete the task.</reminder>"
        "</observation>\n\n"
    )


def test_any_tool_can_be_called_by_its_name() -> None:
    call = read(
        '<tool_call>{"name": "calculator", "arguments": {"expression": "1"}}</tool_call>', TOOLS
    )
    assert isinstance(call, ParsedCall)
    assert (call.tool, call.arguments) == ("calculator", {"expression": "1"})
    assert call.format_observation("1") == "\n<tool_response>\n1\n</tool_response>\n"


@pytest.mark.parametrize(
    ("reply", "tools", "wish"),
    [
        ("<answer>42</answer>", ("search",), TrajectoryEnd()),
        ("<answer>42</answer>", ("bash",), None),
        ("<solution>SELECT 1</solution>", ("sql",), TrajectoryEnd()),
        ("test-action", TOOLS, None),
        ("", TOOLS, None),
        ("<python>1", TOOLS, None),
        ("```pythonic\n1\n```", TOOLS, None),
        ("<python>1</python>", ("bash",), None),
        ("<tool_call>[1]</tool_call>", TOOLS, None),
        ("<tool_call>{</tool_call>", TOOLS, None),
        ("<tool_call>" + "[" * 100_000 + "</tool_call>", TOOLS, None),
        ('<tool_call>{"name": 7}</tool_call>', TOOLS, None),
    ],
)
def test_what_is_no_call(reply: str, tools: tuple[str, ...], wish: object) -> None:
    assert read(reply, tools) == wish


def test_standard_input_comes_from_the_reply_or_the_request() -> None:
    reply = "```python\nprint(input())\n```\n```input\nabc\n```"
    for extra in ({}, {"stdin": "unused"}):
        call = read(reply, TOOLS, extra)
        assert isinstance(call, ParsedCall)
        assert "StringIO('abc')" in call.arguments["code"]
    call = read("<python>print(input())</python>", TOOLS, {"stdin": "'x'"})
    assert isinstance(call, ParsedCall)
    assert "StringIO(\"'x'\")" in call.arguments["code"]


@pytest.mark.parametrize("piece", ["<python>", "```", "<tool_call>"])
def test_a_long_reply_is_read_in_linear_time(piece: str) -> None:
    begin = time.process_time()
    read(piece * (1_500_000 // len(piece)), TOOLS)
    assert time.process_time() - begin < 10  # in quadratic time it would take minutes
