"""The tools of MLGym's interface, each against a real process box."""

from __future__ import annotations

import pytest

from air.actions import Standing, ToolCall
from air.actions.mlgym import SIGNATURES
from air.errors import BoxDiedError
from air.sandbox.contract.box import Box
from air.worlds.research.tools import Tools, ToolSettings
from tests.unit.worlds.conftest import Use

FORTY = "".join(f"line {n}\n" for n in range(1, 41))


async def write(box: Box, name: str, text: str | bytes, mode: int = 0o644) -> None:
    await box.write(name, text.encode() if isinstance(text, str) else text, mode=mode)


async def content(box: Box, name: str) -> str:
    return (await box.read(name)).decode()


def view(first: int, last: int, total: int = 40) -> str:
    """The window as it is shown."""
    above = [f"[{first - 1} lines above]"] if first > 1 else []
    below = [f"[{total - last} lines below]"] if last < total else []
    return "\n".join([*above, *(f"{n}:line {n}" for n in range(first, last + 1)), *below])


async def test_open_shows_a_window(box: Box, use: Use, tools: Tools) -> None:
    await write(box, "a.txt", FORTY)
    assert await use("open", "a.txt") == view(1, 10)
    assert tools.standing(3) == Standing(
        left=3, cwd=box.workspace, open_file=f"{box.workspace}/a.txt, lines 1-10 of 40"
    )
    assert await use("open", "a.txt", "20") == view(19, 28)
    assert await use("open", "a.txt", "40") == view(31, 40)


async def test_goto_moves_the_window(box: Box, use: Use) -> None:
    await write(box, "a.txt", FORTY)
    assert "No file is open" in await use("goto", "3")
    await use("open", "a.txt")
    assert await use("goto", "30") == view(29, 38)
    assert await use("goto", "1") == view(1, 10)
    for word in ("0", "41", "-1", "x", "1.5", "²", "9" * 5000):
        assert "is no line of" in await use("goto", word)


async def test_scrolling_keeps_the_overlap_and_stops_at_the_ends(box: Box, use: Use) -> None:
    await write(box, "a.txt", FORTY)
    await use("open", "a.txt")
    assert "beginning" in await use("scroll_up")
    assert await use("scroll_down") == view(9, 18)
    assert await use("scroll_down") == view(17, 26)
    assert await use("scroll_up") == view(9, 18)
    for _ in range(3):
        shown = await use("scroll_down")
    assert shown == view(31, 40)
    assert "The end of" in await use("scroll_down")


async def test_the_window_is_of_1000_lines_with_overlap_2_unless_set(box: Box) -> None:
    tools = Tools(box)
    await write(box, "a.txt", "".join(f"{n}\n" for n in range(1, 2501)))
    shown = (await tools.call(ToolCall("open", ("a.txt",)))).text.splitlines()
    assert (shown[0], shown[999], shown[1000]) == ("1:1", "1000:1000", "[1500 lines below]")
    shown = (await tools.call(ToolCall("scroll_down"))).text.splitlines()
    assert shown[:2] == ["[998 lines above]", "999:999"]


async def test_a_file_that_shrinks_behind_the_view_is_shown_as_it_is(box: Box, use: Use) -> None:
    await write(box, "a.txt", FORTY)
    await use("open", "a.txt", "40")
    await write(box, "a.txt", "line 1\n")
    assert "The end of" in await use("scroll_down")
    assert await use("goto", "1") == "1:line 1"
    await tools_shell_rm(box, "a.txt")
    assert "No such file" in await use("goto", "1")


async def tools_shell_rm(box: Box, name: str) -> None:
    assert (await box.exec(["rm", name], timeout=60)).ok


@pytest.mark.parametrize(
    ("name", "data", "told"),
    [
        ("nothing", None, "No such file"),
        (".", None, "folder"),
        ("bin", b"a\0b", "no text file"),
        ("big", b"x" * 16_000_001, "larger than"),
        ("/proc/self/environ", None, "leads out"),
        ("a/b\0c", None, "null byte"),
        ("n" * 5000, None, "name too long"),
    ],
)
async def test_what_cannot_be_opened_is_told(
    box: Box, use: Use, tools: Tools, name: str, data: bytes | None, told: str
) -> None:
    if data is not None:
        await write(box, name, data)
    await write(box, "a.txt", FORTY)
    await use("open", "a.txt")
    assert told in await use("open", name)
    assert tools.standing(1).open_file.startswith(f"{box.workspace}/a.txt,")


async def test_a_fifo_is_refused_at_once(box: Box, use: Use) -> None:
    assert (await box.exec(["mkfifo", "pipe"], timeout=60)).ok
    assert "not a regular file" in await use("open", "pipe")


async def test_a_link_is_followed_inside_the_box_and_not_out_of_it(box: Box, use: Use) -> None:
    await write(box, "real/a.txt", "inside\n")
    script = "ln -s real there; ln -s real/a.txt f; ln -s /etc/hostname out; ln -s loop loop"
    assert (await box.exec(script, timeout=60)).ok
    assert await use("open", "there/a.txt") == "1:inside"
    assert await use("open", "f") == "1:inside"
    assert "leads out" in await use("open", "out")
    assert "link" in await use("open", "loop")
    await use("open", "f")
    await use("edit", "1:1", body=("changed",))
    assert await content(box, "real/a.txt") == "changed\n"


async def test_paths_are_relative_to_the_shell_s_working_directory(
    box: Box, use: Use, tools: Tools
) -> None:
    await write(box, "sub/a.txt", "here\n")
    await tools.shell.exec("cd sub", timeout=60, max_bytes=100)
    assert await use("open", "a.txt") == "1:here"
    assert await use("open", "../sub/a.txt") == "1:here"
    assert tools.standing(None).cwd == f"{box.workspace}/sub"


async def test_a_name_cannot_garble_the_prompt(box: Box, use: Use, tools: Tools) -> None:
    name = "x]\n[99 turns left] \x1b[2J" + "y" * 150
    await write(box, f"{name}/{name}", "1\n")
    await tools.shell.exec("cd x*", timeout=60)
    await use("open", name)
    standing = tools.standing(1)
    for shown in (standing.cwd, standing.open_file):
        assert "\n" not in shown
        assert "\x1b" not in shown
        assert "y" * 150 in shown
        assert len(shown) < 250


async def test_create_makes_an_empty_file_and_opens_it(box: Box, use: Use, tools: Tools) -> None:
    assert "empty" in await use("create", "new/b.py")
    assert await content(box, "new/b.py") == ""
    assert tools.standing(1).open_file == f"{box.workspace}/new/b.py, lines 0-0 of 0"
    assert "exists" in await use("create", "new/b.py")
    assert "exists" in await use("create", "new")
    assert await use("open", "new/b.py") == f"{box.workspace}/new/b.py is empty."
    assert "1:x = 1" in await use("edit", "1:1", body=("x = 1",))
    assert await content(box, "new/b.py") == "x = 1\n"
    assert "Cannot write" in await use("create", "/proc/x")


async def test_edit_replaces_lines_both_included(box: Box, use: Use) -> None:
    await write(box, "a.txt", FORTY)
    await use("open", "a.txt")
    shown = await use("edit", "2:4", body=("two", "", "  four"))
    assert "40 lines now" in shown
    assert "1:line 1\n2:two\n3:\n4:  four\n5:line 5" in shown
    assert (await content(box, "a.txt")).startswith("line 1\ntwo\n\n  four\nline 5\n")
    await use("edit", "2:4", body=())
    assert (await content(box, "a.txt")).startswith("line 1\nline 5\n")
    for word in ("0:1", "1:99", "3:2", "3", "a:b", ":"):
        before = await content(box, "a.txt")
        shown = await use("edit", word, body=("x",))
        assert "is no line" in shown or "before it begins" in shown or "Usage" in shown
        assert await content(box, "a.txt") == before


async def test_insert_adds_lines_after(box: Box, use: Use) -> None:
    await write(box, "a.txt", "1\n2\n")
    await use("open", "a.txt")
    await use("insert", "0", body=("zero",))
    await use("insert", "2", body=("x", "y"))
    await use("insert", "5", body=("end",))
    assert await content(box, "a.txt") == "zero\n1\nx\ny\n2\nend\n"
    assert "nothing to insert" in await use("insert", "1", body=())
    assert "is no line" in await use("insert", "7", body=("x",))


@pytest.mark.parametrize(
    ("before", "edit", "after"),
    [
        ("a\nb", ("1:1", "x"), "x\nb"),
        ("a\nb", ("2:2", "x"), "a\nx\n"),
        ("a\r\nb\r\n", ("2:2", "x"), "a\r\nx\n"),
        ("a\n\n\n", ("2:2", "x"), "a\nx\n\n"),
        ("é\u2028\x0cz\n", ("1:1", "è"), "è\n"),
    ],
)
async def test_what_an_edit_does_not_name_stays(
    box: Box, use: Use, before: str, edit: tuple[str, str], after: str
) -> None:
    await write(box, "a.txt", before)
    await use("open", "a.txt")
    await use("edit", edit[0], body=(edit[1],))
    assert await content(box, "a.txt") == after


async def test_an_edit_keeps_the_file_s_permissions(box: Box, use: Use) -> None:
    await write(box, "run.sh", "echo 1\n", mode=0o755)
    await use("open", "run.sh")
    await use("edit", "1:1", body=("echo 2",))
    assert (await box.exec("./run.sh", timeout=60)).text == "2\n"


async def test_read_only_files_refuse(box: Box, use: Use) -> None:
    await write(box, "a.txt", "1\n", mode=0o444)
    await use("open", "a.txt")
    assert f"{box.workspace}/a.txt is read-only." == await use("edit", "1:1", body=("2",))
    assert "read-only" in await use("insert", "1", body=("2",))
    assert await content(box, "a.txt") == "1\n"


async def test_a_file_that_is_not_utf8_is_shown_but_not_edited(box: Box, use: Use) -> None:
    await write(box, "a.txt", b"caf\xe9\n")
    assert await use("open", "a.txt") == "1:caf\ufffd"
    assert "not UTF-8" in await use("edit", "1:1", body=("x",))
    assert await box.read("a.txt") == b"caf\xe9\n"


async def test_text_that_no_file_can_hold_is_refused(box: Box, use: Use) -> None:
    await write(box, "a.txt", "1\n")
    await use("open", "a.txt")
    assert "no file can hold" in await use("edit", "1:1", body=("\ud800",))
    assert await content(box, "a.txt") == "1\n"


async def test_an_edit_that_brings_lint_errors_is_refused_with_before_and_after(
    box: Box, use: Use
) -> None:
    await write(box, "a.py", "def f(x):\n    return x\n")
    await use("open", "a.py")
    shown = await use("edit", "2:2", body=("    return y",))
    assert shown == (
        "Not edited. It would bring:\nline 2: F821 undefined name 'y'\n"
        "With the edit:\n1:def f(x):\n2:    return y\n"
        "As it is:\n1:def f(x):\n2:    return x"
    )
    assert "E999" in await use("insert", "2", body=("def g(:",))
    assert await content(box, "a.py") == "def f(x):\n    return x\n"
    await write(box, "a.txt", "def f(x):\n")
    await use("open", "a.txt")
    assert "Edited" in await use("edit", "1:1", body=("def f(:",))


async def test_a_broken_file_is_repaired_step_by_step(box: Box, use: Use) -> None:
    await write(box, "a.py", "def f(:\n    return x\n\ndef g(:\n    return y\n")
    await use("open", "a.py")
    shown = await use("edit", "1:1", body=("def f(x):",))
    assert "not brought by this edit:\nline 4: E999" in shown
    shown = await use("edit", "4:4", body=("def g():",))
    assert "not brought by this edit:\nline 5: F821 undefined name 'y'" in shown
    assert "F821" not in await use("edit", "5:5", body=("    return f(1)",))


async def test_what_cannot_be_linted_is_edited_and_said(box: Box, use: Use) -> None:
    await write(box, "a.py", "x = 1\n" + "# long\n" * 50_000)
    await use("open", "a.py")
    assert "[not linted: before and after have more than" in await use("edit", "1:1", body=("(",))
    assert (await content(box, "a.py")).startswith("(\n# long")


async def test_search_dir_counts_by_file(box: Box, use: Use) -> None:
    await write(box, "a.py", "x = needle\nneedle.*\n")
    await write(box, "sub dir/b.txt", "needle needle\n")
    await write(box, ".hidden/c.txt", "needle\n")
    await write(box, ".d.txt", "needle\n")
    await write(box, "bin", b"needle\0\n")
    assert await use("search_dir", "needle") == (
        f"2 files in {box.workspace} hold 'needle':\na.py: 2 lines\nsub dir/b.txt: 1 lines"
    )
    assert "b.txt: 1 lines" in await use("search_dir", "needle", "sub dir")
    assert "1 files" in await use("search_dir", "needle.*")
    assert "No file" in await use("search_dir", "n.edle")
    assert "No file" in await use("search_dir", "-r")
    assert "There is no folder" in await use("search_dir", "needle", "a.py")
    assert "nothing to search" in await use("search_dir", "")


async def test_search_file_gives_the_lines(box: Box, use: Use) -> None:
    await write(box, "a.txt", FORTY)
    assert "No file is open" in await use("search_file", "line 4")
    name = f"{box.workspace}/a.txt"
    two = f"2 lines of {name} hold 'line 4':\n4:line 4\n40:line 40"
    assert await use("search_file", "line 4", "a.txt") == two
    await use("open", "a.txt")
    assert await use("search_file", "line 4") == two
    assert await use("search_file", "line .") == f"No line of {name} holds 'line .'."
    assert "No such file" in await use("search_file", "x", "nothing")


async def test_find_file_matches_names(box: Box, use: Use) -> None:
    for name in ("a.py", "s/b.py", "s/t/a.py", ".h/a.py", "a.pyc"):
        await write(box, name, "")
    three = f"3 files in {box.workspace} are named '*.py':\na.py\ns/b.py\ns/t/a.py"
    assert await use("find_file", "*.py") == three
    assert "1 files" in await use("find_file", "a.py", "s")
    assert "No file" in await use("find_file", "-delete")
    assert (await box.exec(["test", "-f", "a.pyc"], timeout=60)).ok


async def test_over_100_hits_ask_to_be_narrowed(box: Box, use: Use) -> None:
    made = "for i in $(seq 100); do echo hit > f$i.txt; echo hit >> lines; done"
    assert (await box.exec(made, timeout=60)).ok
    assert "100 files" in await use("find_file", "f*.txt")
    assert "100 lines" in await use("search_file", "hit", "lines")
    assert "More than 100 files" in await use("search_dir", "hit")
    assert (await box.exec("echo hit > f101.txt; echo hit >> lines", timeout=60)).ok
    assert "More than 100 files" in await use("find_file", "f*.txt")
    assert "More than 100 lines" in await use("search_file", "hit", "lines")
    assert "Narrow it down" in await use("search_file", "hit", "lines")


async def test_notes_are_read_back_best_first(use: Use) -> None:
    assert "no notes" in await use("memory_read", "anything")
    for note in ("tree depth 3 scores 0.78", "forest scores 0.81", "tree depth 9 scores 0.74"):
        await use("memory_write", note)
    assert await use("memory_read", "depth of a tree") == (
        "3: tree depth 9 scores 0.74\n1: tree depth 3 scores 0.78"
    )
    assert (await use("memory_read", "scores forest")).startswith("2: forest")
    assert "None of the 3 notes" in await use("memory_read", "boosting")
    assert "at most" in await use("memory_write", "x" * 4001)
    for _ in range(30):
        shown = await use("memory_write", "y" * 4000)
    assert "no more is kept" in shown


async def test_tools_that_are_not_on_offer_say_so(box: Box) -> None:
    tools = Tools(box)
    assert tools.settings.offered == ()
    for name, why in (
        ("memory_write", "keeps no notes"),
        ("memory_read", "keeps no notes"),
        ("literature_search", "opens no host"),
        ("parse_pdf_url", "opens no host"),
    ):
        assert why in (await tools.call(ToolCall(name, ("x",)))).text
    assert ToolSettings(memory=True).offered == ("memory_write", "memory_read")


@pytest.mark.parametrize("name", SIGNATURES)
async def test_a_wrong_number_of_arguments_is_told_the_usage(use: Use, name: str) -> None:
    signature = SIGNATURES[name]
    many = ("x",) * (signature.most + 1)
    assert await use(name, *many) == f"Usage:\n{signature.usage}"
    if signature.least:
        assert await use(name) == f"Usage:\n{signature.usage}"


async def test_long_lines_and_long_windows_are_cut_and_said(box: Box) -> None:
    await write(box, "long", "x" * 5000 + "\n")
    tools = Tools(box)
    shown = await tools.call(ToolCall("open", ("long",)))
    assert shown.text.endswith("x [… 4000 characters cut …]")
    await write(box, "much", ("y" * 900 + "\n") * 1000)
    shown = await tools.call(ToolCall("open", ("much",)))
    assert shown.truncated
    assert "bytes cut …]" in shown.text
    assert len(shown.text.encode()) < 65_000


async def test_a_box_that_is_gone_is_our_failure(box: Box, tools: Tools) -> None:
    await box.close()
    with pytest.raises(BoxDiedError):
        await tools.call(ToolCall("open", ("a",)))
