"""The tool `sql` reads one SQLite file, and an agent can do nothing else with it."""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import sqlite3
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from air.errors import ConfigError, MissingError
from air.tools import ToolContext, ToolResult, ToolSet, load
from air.tools.sql import runner, worker


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, people in (("a", ["Ada", "Bob"]), ("b", ["Cid"])):
        connection = sqlite3.connect(tmp_path / f"{name}.sqlite")
        connection.execute("CREATE TABLE people (name TEXT, age REAL, photo BLOB)")
        connection.executemany(
            "INSERT INTO people VALUES (?, 30.5, x'00ff')", [(one,) for one in people]
        )
        connection.commit()
        connection.close()
    return tmp_path


async def asked(folder: Path, query: Any, spec: Any = None, **fields: Any) -> ToolResult:
    tools = ToolSet(load(spec or {"name": "sql", "database": "a.sqlite"}, folder))
    async with await tools.open(ToolContext(seed=0, fields=fields)) as opened:
        return await opened.call("sql", {"query": query})


async def test_rows_are_shown(folder: Path) -> None:
    result = await asked(folder, "SELECT *, NULL AS n FROM people ORDER BY name")
    assert result.observation == (
        "name | age | photo | n\nAda | 30.5 | <2 bytes> | NULL\nBob | 30.5 | <2 bytes> | NULL\n(2 rows)"
    )
    assert (result.status, result.info) == ("success", {"rows": 2, "more": False})
    assert (
        "CREATE TABLE people" in (await asked(folder, "SELECT sql FROM sqlite_master")).observation
    )


async def test_more_rows_than_are_shown(folder: Path) -> None:
    spec = {"name": "sql", "database": "a.sqlite", "rows": 1}
    result = await asked(folder, "SELECT name FROM people ORDER BY name", spec)
    assert result.observation == "name\nAda\n(the first 1 row; there are more)"
    exact = await asked(folder, "SELECT name FROM people LIMIT 1", spec)
    assert exact.observation == "name\nAda\n(1 row)"
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n"
    assert (await asked(folder, endless, spec)).info == {"rows": 1, "more": True}


async def test_a_wide_result_shows_fewer_rows(folder: Path) -> None:
    """An agent cannot fill the memory of the process that reads the rows."""
    wide = ", ".join(["printf('%.200c', 'x')"] * 100)
    query = f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 1000) SELECT {wide} FROM n"
    result = await asked(folder, query, {"name": "sql", "database": "a.sqlite", "rows": 1000})
    assert result.info == {"rows": 50, "more": True}  # 20,000 characters each


async def test_each_row_has_its_file(folder: Path) -> None:
    spec = {"name": "sql", "field": "db"}
    query = "SELECT count(*) FROM people"
    assert "\n2\n" in (await asked(folder, query, spec, db="a.sqlite")).observation
    assert "\n1\n" in (await asked(folder, query, spec, db="b.sqlite")).observation
    with pytest.raises(ConfigError, match="no text in the field `db`"):
        await asked(folder, query, spec)
    with pytest.raises(MissingError, match="there is no file"):
        await asked(folder, query, spec, db="c.sqlite")


def contents(folder: Path) -> dict[Path, str]:
    return {file: hashlib.sha256(file.read_bytes()).hexdigest() for file in folder.iterdir()}


@pytest.mark.parametrize(
    "query",
    [
        "DELETE FROM people",
        "UPDATE people SET age = 1",
        "INSERT INTO people VALUES ('x', 1, NULL)",
        "CREATE TABLE t (a)",
        "CREATE TEMP TABLE t (a)",
        "DROP TABLE people",
        "ALTER TABLE people ADD COLUMN x",
        "ATTACH '{folder}/b.sqlite' AS other",
        "ATTACH '{folder}/new.sqlite' AS other",
        "VACUUM INTO '{folder}/new.sqlite'",
        "PRAGMA writable_schema=ON",
        "PRAGMA query_only=OFF",
        "PRAGMA journal_mode=WAL",
        "SELECT * FROM pragma_database_list",
        "SELECT load_extension('x')",
        "SELECT readfile('/etc/passwd')",
        "SELECT writefile('{folder}/new', 'x')",
        "SELECT 1; DELETE FROM people",
        "SELECT random()",
        "BEGIN",
        "",
        ";",
        "-- nothing",
        "SELECT",
        "SELECT \x00",
        "SELECT '" + "x" * 200_000 + "'",
        "SELECT " + "(" * 5000 + "1" + ")" * 5000,
        "SELECT zeroblob(1000000000)",
        "SELECT count(*) FROM (WITH RECURSIVE n(i) AS (SELECT 1 UNION SELECT i+1 FROM n) SELECT 1 FROM n)",
        "SELECT hex(zeroblob(9000000)) LIKE '%a%b%c%d%e%f%g%'",
        "SELECT 'a' REGEXP '(a+)+$'",
    ],
)
async def test_an_agent_can_only_read(query: str, folder: Path) -> None:
    before = contents(folder)
    begin = time.monotonic()
    result = await asked(folder, query.replace("{folder}", str(folder)))
    assert time.monotonic() - begin < 60  # the slowest takes 1.5 seconds
    assert len(result.observation) < 500
    if "LIKE" in query:  # takes long, and may end in time
        assert result.status == "error" or result.info["rows"] == 1
    else:
        assert result.status == "error"
        assert result.observation.startswith("SQL error: ")
    assert contents(folder) == before


@pytest.mark.parametrize(
    ("query", "problem"),
    [
        ("SELECT date('now')", "date() must not ask for the present time: name a date"),
        ("SELECT julianday(x'4E4F77')", "julianday() must not ask"),
        ("SELECT time()", "time() must not ask"),
        ("SELECT strftime('%s')", "strftime() must not ask"),
        ("SELECT strftime('%s', 'n' || 'ow')", "strftime() must not ask"),
        ("SELECT datetime('subsec')", "datetime() must not ask"),
        ("SELECT day FROM today", "date() must not ask"),
        ("SELECT datetime('2024-01-02', 'localtime')", "datetime() must not use the time zone"),
        ("SELECT CURRENT_TIMESTAMP", "not authorized to use function: CURRENT_TIMESTAMP"),
    ],
)
async def test_no_result_depends_on_the_clock(query: str, problem: str, folder: Path) -> None:
    with_views(folder)
    result = await asked(folder, query)
    assert result.status == "error"
    assert result.observation.startswith(f"SQL error: {problem}")


async def test_dates_of_the_database_are_computed(folder: Path) -> None:
    with_views(folder)
    query = "SELECT year, date('2024-01-31', '+1 month'), strftime('%m', NULL) FROM years"
    assert (await asked(folder, query)).observation.split("\n")[1] == "2024 | 2024-03-02 | NULL"


def with_views(folder: Path) -> None:
    connection = sqlite3.connect(folder / "a.sqlite")
    connection.execute("CREATE VIEW today AS SELECT date('now') AS day")
    connection.execute("CREATE VIEW years AS SELECT strftime('%Y', '2024-05-06') AS year")
    connection.close()


async def test_large_and_odd_cells(folder: Path) -> None:
    result = await asked(
        folder, "SELECT printf('%.*c', 5000, 'x') AS a, char(10, 8238, 55296) AS b, 1e999 AS c"
    )
    assert "… (5000 characters)" in result.observation
    assert "\\x0a" in result.observation
    assert "\\x202e" in result.observation
    assert "inf" in result.observation
    result.observation.encode()


@pytest.mark.parametrize(
    ("spec", "part"),
    [
        ({}, "set `database"),
        ({"database": "a.sqlite", "field": "db"}, "set `database"),
        ({"database": "none.sqlite"}, "there is no file"),
        ({"database": "."}, "there is no file"),
        ({"database": "text"}, "is no SQLite file"),
        ({"database": "a.sqlite", "rows": 0}, "`rows`"),
    ],
)
def test_bad_settings_are_refused(spec: dict[str, Any], part: str, folder: Path) -> None:
    (folder / "text").write_text("hello", "utf-8")
    with pytest.raises((ConfigError, MissingError), match=part):
        load({"name": "sql", **spec}, folder)


def test_the_digest_is_that_of_the_file(folder: Path) -> None:
    digests = {
        ToolSet(load({"name": "sql", "database": f"{name}.sqlite"}, folder)).digest
        for name in "aab"
    }
    assert len(digests) == 2


@pytest.mark.slow
def test_a_query_whose_process_is_killed_again_and_again_has_failed(
    folder: Path,
) -> None:
    """As the kernel of a machine with little memory does. Harmless queries have results meanwhile."""
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n"
    limits = runner.Limits(steps=10**12, seconds=60.0)
    ended, killed = threading.Event(), set[int]()

    def kill() -> None:
        while not ended.wait(0.01):
            for pid in children():
                with contextlib.suppress(OSError):  # a process may end at any time
                    used = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
                    if sum(map(int, used)) > 2 * os.sysconf("SC_CLK_TCK"):
                        os.kill(pid, signal.SIGKILL)
                        killed.add(pid)

    def children() -> list[int]:
        # A worker may be one that another thread started, in an earlier test.
        listed = []
        for thread in Path("/proc/self/task").iterdir():
            with contextlib.suppress(OSError):  # a thread may end at any time
                listed += (thread / "children").read_text().split()
        return [int(one) for one in listed if str(worker.__file__) in cmdline(one)]

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        result = runner.run(runner.Database(path=folder / "a.sqlite"), endless, limits)
    finally:
        ended.set()
        killer.join()
    assert result.problem == "the query ends its process"
    assert len(killed) == 2


def cmdline(pid: str) -> str:
    """Returns the command line of a process; empty if the process has ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text()
    return ""
