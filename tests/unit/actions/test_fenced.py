"""The fenced format: what is an action, and what the model is told otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest

from air.actions import Action, Fenced, FormatError, ToolCall, get
from air.errors import ConfigError, MissingError

fenced = get("fenced")


def block(body: str, language: str = "bash") -> str:
    return f"A thought.\n```{language}\n{body}\n```"


@pytest.mark.parametrize(
    ("reply", "action"),
    [
        (block("ls -la"), Action("ls -la")),
        (block("ls", language=""), Action("ls")),
        (block("ls", language="sh") + "\nand an afterthought", Action("ls")),
        (block("validate"), Action("", "validate")),
        (block("  submit  "), Action("", "submit")),
        (
            block("echo a > b\npython3 solve.py\nvalidate"),
            Action("echo a > b\npython3 solve.py", "validate"),
        ),
        (block("cat << 'EOF' > f\nx\nEOF"), Action("cat << 'EOF' > f\nx\nEOF")),
        (block("echo validate"), Action("echo validate")),
    ],
)
def test_an_action_is_read(reply: str, action: Action) -> None:
    assert fenced.parse(reply) == action


@pytest.mark.parametrize(
    ("reply", "word"),
    [
        ("no block at all", "no complete block"),
        ("```bash\nls", "no complete block"),
        (block("ls") + "\n" + block("pwd"), "more than one"),
        (block(""), "empty"),
        (block("validate\nls"), "last line"),
        (block("submit\nvalidate"), "last line"),
        ("", "no complete block"),
    ],
)
def test_the_feedback_says_what_is_wrong(reply: str, word: str) -> None:
    with pytest.raises(FormatError, match=word):
        fenced.parse(reply)


def test_what_is_rendered_is_read_back() -> None:
    action = Action("python3 solve.py", "submit")
    assert fenced.parse(fenced.render("Go.", action)) == action


def test_an_unknown_format_names_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="fenced"):
        get("mlgymm")


@pytest.mark.parametrize(
    ("name", "kind", "part"),
    [
        ("no_such_module:Format", MissingError, "no_such_module"),
        ("broken_format:Format", ConfigError, "ZeroDivisionError"),
        ("odd_formats:Absent", MissingError, "Absent"),
        ("odd_formats:NEEDS", ConfigError, "is not an action format"),
        ("odd_formats:Needs", ConfigError, "without arguments"),
        ("odd_formats:Raises", ConfigError, "no weights"),
        ("odd_formats:Empty", ConfigError, "is not an action format"),
    ],
)
def test_a_users_format_that_cannot_be_had_is_refused_with_its_setting(
    name: str, kind: type[Exception], part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_format.py").write_text("1 / 0")
    (tmp_path / "odd_formats.py").write_text(
        "class Needs:\n    def __init__(self, key): ...\n"
        "class Raises:\n    def __init__(self): raise ValueError('no weights')\n"
        "class Empty: ...\n"
        "NEEDS = 1\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(kind, match=part) as raised:
        get(name, "rows.toml: format")
    assert "rows.toml: format" in str(raised.value)


def test_there_is_one_object_of_a_users_format() -> None:
    name = "air.worlds.proposals.whole_reply:WholeReply"
    assert get(name, "a") is get(name, "b")


TOOLS = [
    {"name": "ask", "parameters": {"type": "object", "properties": {"key": {"type": "string"}}}}
]


def test_a_block_can_be_a_call_of_a_tool() -> None:
    fenced = Fenced().with_tools(TOOLS)
    reply = 'I ask.\n```tool\n{"name": "ask", "arguments": {"key": "a"}}\n```'
    action = Action(tool=ToolCall("ask", arguments={"key": "a"}))
    assert fenced.parse(reply) == action
    assert fenced.parse(fenced.render("I ask.", action)) == action
    assert fenced.parse("```bash\nls\n```") == Action(script="ls")
    assert '"ask"' in fenced.instructions
    assert Fenced().with_tools([]).instructions == Fenced.instructions


@pytest.mark.parametrize(
    "reply",
    [
        '```tool\n{"name": "ask", "arguments": {"lock": "a"}}\n```',
        '```tool\n{"name": "other", "arguments": {}}\n```',
        "```tool\nls\n```",
        '```tool\n{"name": "ask"}\n```\n```bash\nls\n```',
        '```tool\n{"name": "ask"}\n```\n```tool\n{"name": "ask"}\n```',
    ],
)
def test_a_malformed_call_is_a_format_error(reply: str) -> None:
    with pytest.raises(FormatError):
        Fenced().with_tools(TOOLS).parse(reply)


def test_without_tools_a_block_of_a_tool_is_no_action() -> None:
    with pytest.raises(FormatError):
        Fenced().parse('```tool\n{"name": "ask"}\n```')
