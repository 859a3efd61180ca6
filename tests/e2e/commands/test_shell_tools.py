"""Every shipped tool is played by hand in `air shell`, in a world of rows that names it."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from air.cli.main import main
from air.tools import TOOLS
from air.trajectories import load
from tests.e2e.commands.by_hand import shell
from tests.unit.sandbox.fusion_server import DONE, answering

ANSWER = "306"
RAW_SERVER = Path(__file__).parents[2] / "unit" / "tools" / "mcp" / "raw_server.py"
SERVER = [sys.executable, "-c", RAW_SERVER.read_text(), "well"]
PLAYED: dict[str, tuple[str, list[tuple[str, str]]]] = {
    "answer": ('"answer"', []),
    "bash": (
        '"bash"',
        [
            ('bash {"command": "cd /tmp && N=5"}', "no output"),
            ('bash {"command": "pwd; echo $((N + 1))"}', "/tmp"),
        ],
    ),
    "calculator": ('"calculator"', [('calculator {"expression": "2 * 153"}', "306")]),
    "chess": (
        '{name = "chess", opponent = "greedy"}',
        [
            ('chess_move {"move": "e2e4"}', "e4"),
            ("chess_board {}", "P"),
            ("chess_legal_moves {}", "Nf3"),
        ],
    ),
    "code_interpreter": (
        '"code_interpreter"',
        [
            ('code_interpreter {"code": "x = 153"}', ""),
            ('code_interpreter {"code": "print(2 * x)"}', "306"),
        ],
    ),
    "code_interpreter (server)": (
        '{name = "code_interpreter", server = "http://CODE_SERVER"}',
        [('code_interpreter {"code": "print(6 * 7)"}', "42")],
    ),
    "files": (
        '"files"',
        [
            ('create {"path": "a.txt", "text": "one\\ntwo\\n"}', "a.txt"),
            ('str_replace {"path": "a.txt", "old": "two", "new": "three"}', "three"),
            ('insert {"path": "a.txt", "after": 0, "text": "zero"}', "zero"),
            ('undo_edit {"path": "a.txt"}', "a.txt"),
            ('view {"path": "a.txt"}', "three"),
        ],
    ),
    "mcp": (
        f'{{name = "mcp", command = {json.dumps(SERVER)}, box = {{provider = "process"}}}}',
        [("ask {}", "the answer")],
    ),
    "mcp (url)": (
        '{name = "mcp", url = "MCP_URL", private = true, only = ["join"]}',
        [('join {"first": "the ", "second": "answer"}', "the answer")],
    ),
    "search": (
        '{name = "search", corpus = "corpus.jsonl"}',
        [('search {"query": "cat"}', "A cat sleeps.")],
    ),
    "search (encoder)": (
        '{name = "search", corpus = "corpus.jsonl", encoder = "encoder.py:letters", top = 1}',
        [('search {"query": "bark bark"}', "A dog barks.")],
    ),
    "sql": (
        '{name = "sql", database = "words.sqlite"}',
        [('sql {"query": "SELECT word FROM words"}', "milk")],
    ),
    "submit": ('"submit"', []),
    "web_page": (
        '{name = "web_page", hosts = ["localhost:PORT private"]}',
        [('web_page {"url": "http://localhost:PORT/"}', "A page about cats")],
    ),
    "web_search": (
        '{name = "web_search", url = "http://localhost:PORT/?q={query}", private = true}',
        [('web_search {"query": "cats"}', "A result about cats")],
    ),
}
"""How a run file names each tool, and calls with a part of what each shows. The keys are tools' names, some
with a setting that makes it another tool."""
ENCODER = """
def letters(texts):
    return [[text.lower().count(letter) for letter in "abcdefghijklmnopqrstuvwxyz"] for text in texts]
"""
POOL = """
from pathlib import Path

from air.tools import ResourcePool, tool


def note(line):
    with Path("browsers").open("a") as file:
        print(line, file=file)


class Browser:
    def __init__(self):
        self.pages = []
        note("made")

    def reset(self):
        self.pages.clear()

    def close(self):
        note("closed")


@tool(state=ResourcePool(Browser, size=1))
def open_page(browser: Browser, page: str) -> str:
    '''Opens a page.'''
    browser.pages.append(page)
    return " ".join(browser.pages)
"""
"""A tool with a pool of one object. It notes when objects are made and closed."""
UNANSWERED = {"submit", "chess"}
"""Tools whose episode here has no right answer: of a game that is not over, the answer is a loss."""
ENDS = {"answer": f'answer {{"answer": "{ANSWER}"}}', "submit": "submit {}"}


class _Site(BaseHTTPRequestHandler):
    """A page, and the answers of a search service."""

    def do_GET(self) -> None:
        result = {"title": "A result about cats", "url": "http://localhost/", "content": "cats"}
        searched = "?q=" in self.path
        text = json.dumps({"results": [result]}) if searched else "A page about cats"
        self.send_response(200)
        self.send_header("Content-Type", "application/json" if searched else "text/plain")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing."""


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    """The port of a site with a page and a search service."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Site) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield str(server.server_port)
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def mcp_url() -> Iterator[str]:
    """The URL of a real MCP server."""
    program = [sys.executable, "-m", "air.integrity.tools_and_checkers.mcp_server"]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().split()[-1]
        finally:
            process.terminate()


@pytest.fixture(scope="module")
def places(site: str, mcp_url: str) -> Iterator[dict[str, str]]:
    """The addresses and ports for the words that stand for them in `PLAYED`."""
    with answering((200, DONE)) as (code_server, _):
        yield {"PORT": site, "MCP_URL": mcp_url, "CODE_SERVER": code_server}


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [{"question": "What is 2 * 153?", "golden_answers": [ANSWER]}]
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    Path("encoder.py").write_text(ENCODER)
    Path("corpus.jsonl").write_text('{"text": "A cat sleeps."}\n{"text": "A dog barks."}\n')
    with contextlib.closing(sqlite3.connect("words.sqlite")) as database:
        database.executescript("CREATE TABLE words (word TEXT); INSERT INTO words VALUES ('milk')")


def test_every_shipped_tool_is_played() -> None:
    assert {name.partition(" ")[0] for name in PLAYED} == set(TOOLS)


@pytest.mark.parametrize("name", PLAYED)
def test_a_tool_is_played_by_hand(
    name: str, places: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    spec, calls = PLAYED[name]
    lines = ['data = "rows.jsonl"', f"tools = [{spec}]", 'checker = "qa_em"', 'split = "all"']
    end = ENDS.get(name, ANSWER)
    script = "\n".join([*(call for call, _ in calls), end, ":save played.jsonl"])
    Path("task.toml").write_text(placed("\n".join(lines) + "\n", places))
    shell(placed(f"{script}\n", places), "rows:task.toml", "--runtime", "subprocess")
    played = load(Path("played.jsonl"))
    assert len(played.steps) == len(calls) + 1
    for step, (call, shown) in zip(played.steps, calls, strict=False):
        assert shown in step.observation, (call, step.observation)
    assert played.steps[-1].reward == float(name not in UNANSWERED)


def test_a_tool_with_a_pool_is_played_by_hand_and_replayed() -> None:
    """`:undo` plays a new episode, which borrows the object of the first, and sees none of its pages. The end
    of the command closes the object."""
    Path("browsers.py").write_text(POOL)
    keys = ['data = "rows.jsonl"', 'tools = ["browsers.py:open_page"]', 'checker = "qa_em"']
    Path("task.toml").write_text("\n".join([*keys, 'split = "all"\n']))
    pages = ['open_page {"page": "a"}', 'open_page {"page": "b"}']
    script = "\n".join([pages[1], ":undo", *pages, ANSWER, ":save played.jsonl\n"])
    shell(script, "rows:task.toml", "--runtime", "subprocess")
    played = load(Path("played.jsonl"))
    assert [step.observation for step in played.steps][:2] == ["a", "a b"]
    assert Path("browsers").read_text().split() == ["made", "closed"]
    assert main(["replay", "played.jsonl"]) == 0
    assert Path("browsers").read_text().split() == ["made", "closed"] * 2


def placed(text: str, places: dict[str, str]) -> str:
    for word, place in places.items():
        text = text.replace(word, place)
    return text
