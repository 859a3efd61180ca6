"""MLGym's interface as a format: what is an action, and what the model is told otherwise."""

from __future__ import annotations

import pytest

from air.actions import Action, FormatError, Standing, ToolCall, get
from air.actions.mlgym import OPTIONAL, SIGNATURES

mlgym = get("mlgym")


def block(body: str, language: str = "") -> str:
    return f"A discussion.\n```{language}\n{body}\n```"


def tool(name: str, *args: str, body: tuple[str, ...] | None = None) -> Action:
    return Action(tool=ToolCall(name, args, body))


@pytest.mark.parametrize(
    ("reply", "action"),
    [
        (block("ls -la"), Action("ls -la")),
        (block("ls -la", "bash"), Action("ls -la")),
        ("```\nls\n```", Action("ls")),
        (block("ls") + "\nand an afterthought with `a` and ``` in it", Action("ls")),
        (block("\n\nls\n\n"), Action("ls")),
        (block("# look\nls"), Action("# look\nls")),
        (block("cat << 'EOF' > f\nvalidate\n\nEOF"), Action("cat << 'EOF' > f\nvalidate\n\nEOF")),
        (block("python3 -c '\nopen x'"), Action("python3 -c '\nopen x'")),
        (
            "````\ncat > f << EOF\n```\nx\n```\nEOF\n````",
            Action("cat > f << EOF\n```\nx\n```\nEOF"),
        ),
        (block("validate"), Action(ending="validate")),
        (block("  submit  "), Action(ending="submit")),
        (block("# now\nsubmit"), Action(ending="submit")),
        (block('open "a b.py" 12'), tool("open", "a b.py", "12")),
        (block("open a.py"), tool("open", "a.py")),
        (block("# see\nopen a.py\n# done"), tool("open", "a.py")),
        (block("open"), tool("open")),
        (block("goto 7"), tool("goto", "7")),
        (block("scroll_down"), tool("scroll_down")),
        (block("scroll_up"), tool("scroll_up")),
        (block("create x/y.py"), tool("create", "x/y.py")),
        (block("edit 3:5\n  a\n\n b\nend_of_edit"), tool("edit", "3:5", body=("  a", "", " b"))),
        (block("edit 3:5\nend_of_edit"), tool("edit", "3:5", body=())),
        (block("edit 1:1\n\nend_of_edit"), tool("edit", "1:1", body=("",))),
        (block("insert 0\nx\n end_of_insert"), tool("insert", "0", body=("x",))),
        (block("insert 2\nend_of_edit\nend_of_insert"), tool("insert", "2", body=("end_of_edit",))),
        (block("edit a b\nend_of_edit"), tool("edit", "a", "b", body=())),
        (block('search_dir "def f" src'), tool("search_dir", "def f", "src")),
        (block("search_file 'it''s'"), tool("search_file", "its")),
        (block("find_file *.py"), tool("find_file", "*.py")),
        (block('memory_write it\'s 1, not "2"'), tool("memory_write", 'it\'s 1, not "2"')),
        (block('memory_write "it\'s\ntwo lines"'), tool("memory_write", "it's\ntwo lines")),
        (block("memory_write"), tool("memory_write")),
        (block("memory_read best score"), tool("memory_read", "best score")),
        (block('literature_search "a b" 3'), tool("literature_search", "a b", "3")),
        (block("parse_pdf_url http://h/x.pdf"), tool("parse_pdf_url", "http://h/x.pdf")),
        (block("./open x"), Action("./open x")),
        (block("opened=1; echo validate"), Action("opened=1; echo validate")),
    ],
)
def test_an_action_is_read(reply: str, action: Action) -> None:
    assert mlgym.parse(reply) == action


@pytest.mark.parametrize(
    ("reply", "word"),
    [
        ("", "no fenced block"),
        ("no block at all", "no fenced block"),
        ("`ls`", "no fenced block"),
        ("```\nls", "not closed"),
        ("````\nls\n```", "not closed"),
        (block("ls") + "\n" + block("pwd"), "2 fenced blocks"),
        (block(""), "empty"),
        (block("# only a comment"), "empty"),
        (block("validate\nls"), "more follows `validate`"),
        (block("open a\nopen b"), "more follows `open`"),
        (block("validate --now"), "takes no arguments"),
        (block("ls\nvalidate"), "`validate` must be alone"),
        (block("cd src\nopen 'a b.py'"), "`open` must be alone"),
        (block("edit 1:2\nx"), "end_of_edit"),
        (block("insert 1\nx\nend_of_edit"), "end_of_insert"),
        (block("edit 1:1\nx\nend_of_edit\nedit 2:2\ny\nend_of_edit"), "more follows end_of_edit"),
        (block('open "a'), "No closing quotation"),
    ],
)
def test_the_feedback_says_what_is_wrong(reply: str, word: str) -> None:
    with pytest.raises(FormatError, match=f"Format error: .*{word}"):
        mlgym.parse(reply)


@pytest.mark.parametrize(
    "action",
    [
        Action("python3 solve.py\necho 'a b'"),
        Action("cat > f << EOF\n````\nEOF"),
        Action(ending="submit"),
        tool("open", "a b's.py", "3"),
        tool("edit", "1:2", body=("```python", "", "# x")),
        tool("insert", "0", body=("",)),
        tool("memory_write", 'it\'s "quoted"\nand long'),
    ],
)
def test_what_is_rendered_is_read_back(action: Action) -> None:
    assert mlgym.parse(mlgym.render("Go.", action)) == action


def test_every_command_is_taught() -> None:
    taught = mlgym.instructions.splitlines()
    for name in ("validate", "submit", *SIGNATURES):
        if name not in OPTIONAL:
            assert any(line.split()[:1] == [name] for line in taught), name
    assert set(mlgym.optional) == set(OPTIONAL)
    assert not any(name in mlgym.instructions for name in OPTIONAL)


def test_each_turn_ends_with_turns_left_open_file_working_directory_and_a_prompt() -> None:
    standing = Standing(left=4, cwd="/workspace/src", open_file="/workspace/a.py, lines 1-9 of 9")
    assert mlgym.footer(standing) == (
        "\n[4 turns left] [open: /workspace/a.py, lines 1-9 of 9] [in: /workspace/src]\n$"
    )
    assert mlgym.footer(Standing(cwd="/")) == "\n[open: none] [in: /]\n$"
    assert mlgym.opening(standing) == mlgym.footer(standing)


def test_the_fenced_format_shows_what_it_always_did() -> None:
    fenced = get("fenced")
    assert fenced.footer(Standing(left=3)) == "\n[3 turns left]"
    assert fenced.footer(Standing()) == ""
    assert fenced.opening(Standing(left=3)) == ""
    assert fenced.retries is None
    assert fenced.parse(block("open a.py", "bash")) == Action("open a.py")
