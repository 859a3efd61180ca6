"""SQL questions: queries run safely, results compare as multisets, rewards as specified."""

from __future__ import annotations

import asyncio
import json
import math
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from air.actions.base import Action
from air.errors import ConfigError, InfrastructureError, MissingError
from air.tools.sql import runner, worker
from air.tools.sql.runner import Database, Limits, run
from air.tools.sql.worker import fingerprint
from air.worlds.questions import SOURCE
from air.worlds.questions.sql import players
from air.worlds.questions.sql.bird import from_folder
from air.worlds.questions.sql.episode import SqlEpisode, query_of
from air.worlds.questions.sql.questions import LEVELS, generated
from air.worlds.questions.sql.schemas import SCHEMAS
from air.worlds.questions.sql.templates import TEMPLATES
from air.worlds.sources import VALIDATION_SEED


def database(*statements: str) -> Database:
    connection = sqlite3.connect(":memory:")
    connection.executescript(";".join(statements))
    image = connection.serialize()
    connection.close()
    return Database(image)


BOOKS = database(
    "CREATE TABLE books (id INTEGER PRIMARY KEY, title TEXT, pages INTEGER)",
    "INSERT INTO books VALUES (1, 'A', 10), (2, 'B', 20), (3, 'C', NULL)",
)
ENDLESS = "WITH RECURSIVE a(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM a) SELECT"


@pytest.mark.parametrize(
    ("left", "right", "equal"),
    [
        ([(1, "a"), (2, "b")], [(2, "b"), (1, "a")], True),
        ([(1,), (1,)], [(1,)], False),
        ([(1,)], [(1.0,)], True),
        ([(0.1 + 0.2,)], [(0.3,)], True),
        ([(0.3,)], [(0.3001,)], False),
        ([(1,)], [("1",)], False),
        ([(None,)], [("None",)], False),
        ([(None,), (1,), ("a",), (b"a",)], [(b"a",), ("a",), (1,), (None,)], True),
        ([(1, 2)], [(2, 1)], False),
        ([("a\nb",)], [("a",), ("b",)], False),
        ([("a', 'b",)], [("a", "b")], False),
        ([], [(None,)], False),
        ([(float("inf"),)], [(1e308,)], False),
        ([(2**63 - 1,)], [(2**63 - 2,)], False),
    ],
)
def test_results_are_equal_as_multisets(left: list[tuple], right: list[tuple], equal: bool) -> None:
    assert (fingerprint(left) == fingerprint(right)) is equal


@pytest.mark.parametrize(
    ("answer", "query"),
    [
        ("```sql\nSELECT 1;\n```", "SELECT 1"),
        ("Here:\n```SQL\nSELECT 1\n```\nand\n```sql\nSELECT 2\n```", "SELECT 1"),
        ("```\nSELECT 1\n```", "SELECT 1"),
        (" select 1 ", "select 1"),
        ("(SELECT 1) UNION SELECT 2", "(SELECT 1) UNION SELECT 2"),
        ("WITH a AS (SELECT 1) SELECT * FROM a", "WITH a AS (SELECT 1) SELECT * FROM a"),
        ("-- all of it\n(select 1)", "-- all of it\n(select 1)"),
        ("-- select 1", None),
        ("```sqlite3\nSELECT 1\n```", "SELECT 1"),
        ("```postgresql\nSELECT 1\n```", "SELECT 1"),
        ("```sqlite4\nSELECT 1\n```", None),
        ("/* all\nof * it */ (select 1)", "/* all\nof * it */ (select 1)"),
        ("/**/ -- x\nselect 1", "/**/ -- x\nselect 1"),
        ("/* select 1", None),
        ("```sql\nSELECT 1", None),
        ("```sql\n;\n```", None),
        ("```python\nprint(1)\n```", None),
        ("The answer is 42.", None),
        ("selection", None),
        ("", None),
    ],
)
def test_the_query_of_an_answer(answer: str, query: str | None) -> None:
    assert query_of(answer) == query


def test_finding_the_query_takes_linear_time() -> None:
    """The same work on fifty times the text: 2,500 times as long would be quadratic."""

    def seconds(count: int) -> float:
        start = time.process_time()
        query_of("```sql " * count + "(" * count)
        query_of("/* " * count)
        query_of("/**/" * count)
        return time.process_time() - start

    assert seconds(100_000) < 500 * max(seconds(2_000), 0.0005)


@pytest.mark.parametrize(
    ("sql", "problem"),
    [
        ("INSERT INTO books VALUES (9, 'x', 1)", "not authorized"),
        ("DELETE FROM books", "not authorized"),
        ("UPDATE books SET pages = 1 RETURNING pages", "not authorized"),
        ("DROP TABLE books", "not authorized"),
        ("CREATE TEMP TABLE x (a)", "not authorized"),
        ("ATTACH ':memory:' AS x", "not authorized"),
        ("ATTACH '/etc/passwd' AS x", "not authorized"),
        ("PRAGMA query_only = OFF", "not authorized"),
        ("PRAGMA hard_heap_limit = 0", "not authorized"),
        ("SELECT * FROM pragma_database_list", "not authorized"),
        ("BEGIN", "not authorized"),
        ("SAVEPOINT a", "not authorized"),
        ("VACUUM INTO '/tmp/copy.sqlite'", "authorization denied"),
        ("SELECT load_extension('/tmp/x.so')", "not authorized"),
        ("SELECT fts3_tokenizer('simple')", "not authorized"),
        ("SELECT readfile('/etc/passwd')", "no such function"),
        ("SELECT writefile('/tmp/x', 'y')", "no such function"),
        ("CREATE VIRTUAL TABLE x USING fts5(a)", "not authorized"),
        ("SELECT random()", "not authorized"),
        ("SELECT RANDOMBLOB(8)", "not authorized"),
        ("SELECT title FROM books ORDER BY random()", "not authorized"),
        ("SELECT strftime('%s', 'n' || 'ow')", "not authorized"),
        ("SELECT CURRENT_TIMESTAMP", "not authorized"),
        ("SELECT 1; SELECT 2", "one statement"),
        ("SELECT 1; DROP TABLE books", "one statement"),
        ("SELECT ?", "binding"),
        ("SELECT missing FROM books", "no such column"),
        ("SELECT '\0'", "null character"),
        ("SELECT '\ud800'", "surrogates"),
        ("-- nothing", "gives no table"),
        (f"SELECT {'(' * 300}1{')' * 300}", "overflow|too large"),
        (f"SELECT {'1+' * 60_000}1", "too large|too big|too long|overflow"),
        (f"{ENDLESS} x FROM a", "more than 10000 rows"),
        (f"{ENDLESS} hex(zeroblob(1000000)) FROM a", "more than 4000000 bytes"),
        (f"{ENDLESS} count(*) FROM a", "too long"),
        ("SELECT count(*) FROM books a, books b, books c, books d, books e, books f, books g, books h,"
         " books i, books j, books k, books l, books m, books n, books o", "too long"),
        (f"{ENDLESS} group_concat(hex(zeroblob(9))) FROM a", "too long|too big|memory"),
        (f"SELECT count(*) FROM ({ENDLESS} hex(zeroblob(100000)) AS y FROM a ORDER BY 1)", "memory|long"),
        ("SELECT zeroblob(2000000000)", "too big"),
    ],
)  # fmt: skip
def test_what_a_query_cannot_do(sql: str, problem: str) -> None:
    result = run(BOOKS, sql, Limits(steps=2_000_000))
    assert re.search(problem, result.problem)
    assert not result.fingerprint


def test_a_function_that_never_returns_is_ended_by_its_cpu_time() -> None:
    """One call of `instr` over two long texts looks at every place without a step of the virtual machine."""
    slow = "SELECT instr(hex(zeroblob(4900000)), hex(zeroblob(2400000)) || '1')"
    assert run(BOOKS, slow, Limits(seconds=0.2)).problem == "the query takes too long"
    assert run(BOOKS, "SELECT 1", Limits()).rows == 1


def test_a_query_reads_what_is_there() -> None:
    result = run(BOOKS, "SELECT pages, title FROM books", Limits())
    assert (result.rows, result.problem) == (3, "")
    assert result.fingerprint == fingerprint([(None, "C"), (20, "B"), (10, "A")])
    assert run(BOOKS, "SELECT name FROM sqlite_master", Limits()).fingerprint == fingerprint(
        [("books",)]
    )


def test_a_text_that_is_no_utf8_is_a_result() -> None:
    assert run(BOOKS, "SELECT CAST(x'ff' AS TEXT)", Limits()).rows == 1


def test_a_query_ends_with_the_process_that_asked() -> None:
    program = [sys.executable, "-I", "-S", worker.__file__]
    script = 'exec 3<&0; "$@" <&3 & exec 3<&-; wait'
    with subprocess.Popen(
        ["sh", "-c", script, "sh", *program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as shell:
        assert shell.stdin is not None
        assert shell.stdout is not None
        limits = vars(Limits(steps=10**15, seconds=60.0))
        for sql in ("SELECT 1", f"{ENDLESS} count(*) FROM a"):
            request = BOOKS.request() | limits | {"sql": sql, "parent": shell.pid}
            shell.stdin.write(json.dumps(request).encode() + b"\n")
            shell.stdin.flush()
            if sql == "SELECT 1":
                assert json.loads(shell.stdout.readline())["rows"] == 1
        shell.kill()
        assert json.loads(shell.stdout.readline()) == {"problem": "the query takes too long"}


def test_a_query_whose_process_is_ended_once_by_another_hand_is_run_again() -> None:
    run(BOOKS, "SELECT 1", Limits())
    worker = runner._idle()[-1]
    os.kill(worker._process.pid, signal.SIGKILL)
    assert run(BOOKS, "SELECT 1", Limits()).rows == 1


def test_where_no_query_has_a_result_it_is_our_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    while idle := runner._idle():
        idle.pop().close()
    (tmp_path / "libc.so.6").write_text("no library")  # so that no program starts
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    with pytest.raises(InfrastructureError, match="status 127"):
        run(BOOKS, "SELECT 1", Limits())
    monkeypatch.delenv("LD_LIBRARY_PATH")
    assert run(BOOKS, "SELECT 1", Limits()).rows == 1


@pytest.mark.parametrize("level", LEVELS)
def test_gold_queries_answer_and_mistakes_do_not(level: int) -> None:
    """Computed anew by SQLite itself and compared by Counter, without the code under test."""
    draw, seen = generated(level), set()
    for seed in range(40):
        question = draw(seed)
        connection = sqlite3.connect(":memory:")
        connection.deserialize(question.database.image)
        gold = Counter(connection.execute(question.gold).fetchall())
        assert gold
        assert set(gold) not in ({(None,)}, {(0,)})
        assert question.wrong
        for sql in question.wrong:
            assert Counter(connection.execute(sql).fetchall()) != gold, sql
        connection.close()
        assert question == draw(seed)
        assert "{" not in question.question + question.gold
        seen.add(question.schema)
    assert len(seen) == len(SCHEMAS)


def test_every_template_is_asked() -> None:
    for level, templates in TEMPLATES.items():
        golds = [generated(level)(seed).gold for seed in range(40)]
        shapes = {re.sub(r"\b(?:[a-z_]+|\d+|'[^']*')\b|'[^']*'", "_", gold) for gold in golds}
        assert len(shapes) >= len(templates)


def test_validation_asks_no_question_of_training() -> None:
    draw = generated(1)
    train = {draw(seed).gold for seed in range(150)}
    validation = {draw(VALIDATION_SEED + seed).gold for seed in range(60)}
    assert len(validation) > 10
    assert not train & validation


async def play(name: str, *answers: str, seed: int = 3) -> list[tuple[str, float, bool]]:
    world = SOURCE.load(name).world()
    await world.reset(seed)
    steps = [await world.step(Action(answer=answer)) for answer in answers]
    await world.close()
    return [(step.observation.text, step.reward, step.done) for step in steps]


async def test_a_match_pays_by_its_turn() -> None:
    gold = players.block(generated(None)(3).gold)
    no, failing = "```sql\nSELECT 0\n```", "```sql\nSELECT x\n```"
    mismatch = ("The result does not match.", 0.0, False)
    assert await play("sql", gold) == [("The result matches.", 1.0, True)]
    assert await play("sql", no) == [("The result does not match.", 0.0, True)]
    steps = await play("sql5", no, failing, gold)
    assert steps[0] == mismatch
    assert steps[1][0].endswith("SQL error: no such column: x.")
    assert steps[2] == ("The result matches.", 0.25, True)
    assert [s[2] for s in await play("sql5", *[no] * 5)] == [False] * 4 + [True]


async def test_an_error_that_repeats_the_query_is_cut() -> None:
    ((text, reward, done),) = await play("sql5", f"SELECT {'x' * 90_000}")
    assert text.startswith("The result does not match. SQL error: no such column: xxx")
    assert len(text) < 400
    assert (reward, done) == (0.0, False)
    ((text, *_),) = await play("sql5", "SELECT \x01")
    assert text.isprintable()


async def test_no_query_costs_and_ends() -> None:
    assert await play("sql5", "I do not know.") == [
        ("There is no SQL block in your answer.", -0.5, True)
    ]


async def test_the_first_observation_has_schema_and_question_and_no_answer() -> None:
    question = generated(None)(3)
    shown = (await SOURCE.load("sql").world().reset(3)).text
    assert question.schema in shown
    assert question.question in shown
    assert question.gold not in shown


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT sql FROM sqlite_master",
        "SELECT * FROM sqlite_master, sqlite_master b",
        "SELECT NULL",
        "SELECT 0",
        "SELECT 1 WHERE 0",
    ],
)
def test_a_query_that_answers_nothing_matches_nothing(sql: str) -> None:
    for seed in range(40):
        question = generated(None)(seed)
        assert run(question.database, sql, Limits()).fingerprint != question.expected


def test_several_queries_in_one_answer_are_one_attempt() -> None:
    question = generated(1)(0)
    golds = players.block("SELECT 0") + "\n" + players.block(question.gold)
    episode = SqlEpisode(generated(1), 5, Limits())
    episode.start(0)
    assert episode.act(golds).reward == 0.0
    assert episode.act(players.block(f"SELECT 0; {question.gold}")).reward == 0.0


@pytest.mark.parametrize("turns", [1, 5])
def test_a_choosing_player_earns_what_chance_gives(turns: int) -> None:
    """Each choice is right with p = 1/(1 + mistakes); the n-th answer pays 1/2^(n-1)."""
    mean = variance = total = 0.0
    questions = generated(None)
    for seed in range(40):
        p = 1 / (1 + len(questions(seed).wrong))
        outcomes = [(p * (1 - p) ** k, 0.5**k) for k in range(turns)]
        expected = sum(chance * reward for chance, reward in outcomes)
        mean += expected
        variance += sum(chance * reward**2 for chance, reward in outcomes) - expected**2
        episode = SqlEpisode(questions, turns, Limits())
        observation, player, done = episode.start(seed), players.choosing(questions, seed), False
        while not done:
            step = episode.act(player(observation))
            done, total = step.done, total + step.reward
    assert abs(total - mean) < 3 * math.sqrt(variance)


def test_a_perfect_player_solves_everything() -> None:
    for seed in range(30):
        episode = SqlEpisode(generated(None), 1, Limits())
        episode.start(seed)
        assert episode.act(players.perfect(generated(None), seed)("")).reward == 1.0


def world_of(limits: Limits) -> Any:
    world: Any = SOURCE.load("sql").world()
    world._make = lambda: SqlEpisode(generated(None), 1, limits)
    return world


async def test_sixty_four_at_once_are_answered_by_few_processes() -> None:
    """Half of them run endless queries."""

    async def one(seed: int) -> float:
        world = world_of(Limits(steps=200_000))
        await world.reset(seed)
        sql = f"{ENDLESS} count(*) FROM a" if seed % 2 else generated(None)(seed).gold
        return float((await world.step(Action(answer=players.block(sql)))).reward)

    assert await asyncio.gather(*map(one, range(64))) == [1.0, 0.0] * 32
    assert len(runner._idle()) <= (os.cpu_count() or 1) + 1


async def test_a_long_query_leaves_the_event_loop_free() -> None:
    """The query runs for about a second. A step that blocked the loop would be over after its first turn."""
    world = world_of(Limits(steps=30_000_000))
    await world.reset(1)
    step = asyncio.create_task(
        world.step(Action(answer=players.block(f"{ENDLESS} count(*) FROM a")))
    )
    for _ in range(3):
        await asyncio.sleep(0)
    assert not step.done()
    assert (await step).reward == 0.0


def bird(folder: Path, rows: Sequence[object], split: str = "dev") -> Path:
    (folder / f"{split}.json").write_text(json.dumps(rows))
    for name in ("library", "empty"):
        place = folder / f"{split}_databases" / name
        place.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(place / f"{name}.sqlite")
        connection.execute("CREATE TABLE IF NOT EXISTS books (id INTEGER PRIMARY KEY, title TEXT)")
        connection.execute("INSERT OR REPLACE INTO books VALUES (1, 'A'), (2, 'B')")
        connection.commit()
        connection.close()
    return folder


def row(number: int, sql: str = "", db_id: str = "library") -> dict[str, object]:
    return {
        "question_id": number,
        "db_id": db_id,
        "question": f"What is {number} plus the least id?",
        "evidence": "the least id is 1",
        "SQL": sql or f"SELECT {number} + MIN(id) FROM books;",
        "difficulty": "simple",
    }


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


async def test_a_folder_of_bird(tmp_path: Path) -> None:
    bird(tmp_path, [row(n) for n in range(30)])
    questions, _ = from_folder(tmp_path)
    train = {questions(seed).gold for seed in range(30)}
    validation = {questions(VALIDATION_SEED + seed).gold for seed in range(30)}
    assert len(train | validation) == 30
    assert not train & validation
    before = contents(tmp_path)
    task = SOURCE.load(f"sql5@{tmp_path}")
    world = task.world()
    shown = (await world.reset(0)).text
    assert "CREATE TABLE books" in shown
    assert "Hint: the least id is 1" in shown
    for attack in ("DELETE FROM books", "ATTACH '/tmp/x' AS x", "SELECT * FROM books"):
        assert (await world.step(Action(answer=players.block(attack)))).reward == 0
    gold = questions(0).gold
    assert (await world.step(Action(answer=players.block(gold)))).reward == 0.125
    assert contents(tmp_path) == before
    assert not task.replays


def test_training_has_its_own_file_if_there_is_one(tmp_path: Path) -> None:
    bird(tmp_path, [row(n) for n in range(3)])
    bird(tmp_path, [row(n) for n in range(10, 12)], "train")
    questions, _ = from_folder(tmp_path)
    assert "train_databases" in str(questions(0).database.path)
    assert "dev_databases" in str(questions(VALIDATION_SEED).database.path)


def test_a_gold_query_without_a_result_is_not_asked(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Or any query that finds nothing would earn the reward. A warning names each such row once."""
    rows = [row(n, "SELECT id FROM books WHERE 0" if n % 2 else "") for n in range(20)]
    bird(tmp_path, rows)
    bird(tmp_path, rows, "train")
    questions, _ = from_folder(tmp_path)
    empty = fingerprint([])
    for _ in range(2):
        assert all(questions(seed).expected != empty for seed in range(20))
    file = tmp_path / "train.json"
    assert sorted(record.message for record in caplog.records) == sorted(
        f"{file}, row {n + 1} (question_id {n}): skipped, because its gold query finds nothing"
        for n in range(1, 20, 2)
    )


FEW = Limits(steps=200_000, rows=10)


@pytest.mark.parametrize(
    ("gold", "problem"),
    [
        ("SELECT x", "no such column: x"),
        (f"{ENDLESS} count(*) FROM a", "the query takes too long"),
        (f"{ENDLESS} x FROM a", "the result has more than 10 rows"),
    ],
)
def test_a_gold_query_that_fails_is_a_failure_of_its_row(
    gold: str, problem: str, tmp_path: Path
) -> None:
    bird(tmp_path, [row(n) for n in range(3)])
    bird(tmp_path, [row(30), row(31, gold)], "train")
    questions, _ = from_folder(tmp_path, FEW)
    message = re.escape(
        f"{tmp_path / 'train.json'}, row 2 (question_id 31): the gold query failed: {problem} — "
    )
    with pytest.raises(InfrastructureError, match=message):
        questions(1)
    assert questions(0).gold == "SELECT 30 + MIN(id) FROM books"


async def test_an_episode_does_not_begin_with_a_gold_query_that_fails(tmp_path: Path) -> None:
    bird(tmp_path, [row(n) for n in range(3)])
    bird(tmp_path, [row(30, "SELECT x")], "train")
    world = SOURCE.load(f"sql5@{tmp_path}").world()
    with pytest.raises(InfrastructureError, match=r"train\.json, row 1 \(question_id 30\)"):
        await world.reset(0)
    await world.close()


def test_a_group_runs_its_gold_query_once(tmp_path: Path) -> None:
    """Each query that runs beside others needs a process of its own."""
    while idle := runner._idle():
        idle.pop().close()
    bird(tmp_path, [row(n) for n in range(3)])
    bird(tmp_path, [row(30, f"{ENDLESS} count(*) FROM a")], "train")
    questions, _ = from_folder(tmp_path, Limits(steps=3_000_000))

    def failure(_: int) -> str:
        with pytest.raises(InfrastructureError) as caught:
            questions(0)
        return str(caught.value)

    with ThreadPoolExecutor(8) as pool:
        (message,) = set(pool.map(failure, range(8)))
    assert "too long" in message
    assert len(runner._idle()) == 1


async def begun(folder: Path) -> tuple[Any, Path]:
    """An episode, and the file of its database, which has a table `pages` besides `books`."""
    bird(folder, [row(n) for n in range(3)])
    bird(folder, [row(30)], "train")
    file = folder / "train_databases" / "library" / "library.sqlite"
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("CREATE TABLE pages (text TEXT)")
        connection.execute("INSERT INTO pages VALUES ('A')")
        connection.commit()
    world = SOURCE.load(f"sql5@{folder}").world()
    await world.reset(0)
    return world, file


def damage(file: Path, table: str) -> None:
    """Overwrites a table as a failing disk would, which changes no time of the file."""
    status = file.stat()
    with closing(sqlite3.connect(file)) as connection:
        ((size,),) = connection.execute("PRAGMA page_size")
        ((page,),) = connection.execute(
            "SELECT rootpage FROM sqlite_master WHERE name = ?", [table]
        )
    with file.open("r+b") as data:
        data.seek((page - 1) * size)
        data.write(b"\xff" * size)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize("data", [None, b"", b"no database"], ids=["lost", "empty", "replaced"])
async def test_a_database_that_is_lost_is_no_failure_of_the_agent(
    data: bytes | None, tmp_path: Path
) -> None:
    world, file = await begun(tmp_path)
    assert (await world.step(Action(answer="SELECT 1"))).reward == 0
    file.unlink()
    if data is not None:
        file.write_bytes(data)
    with pytest.raises(InfrastructureError, match=r"row 1 \(question_id 30\): .*library\.sqlite"):
        await world.step(Action(answer=str(row(30)["SQL"])))
    await world.close()


async def test_a_changed_database_is_described_as_it_is_now(tmp_path: Path) -> None:
    world, file = await begun(tmp_path)
    await world.close()
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("CREATE TABLE authors (name TEXT)")
        connection.commit()
    status = file.stat()
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    task = SOURCE.load(f"sql5@{tmp_path}")
    assert "CREATE TABLE authors" in (await task.world().reset(0)).text


async def test_damage_that_the_gold_query_meets_is_no_failure_of_the_agent(tmp_path: Path) -> None:
    world, file = await begun(tmp_path)
    damage(file, "books")
    with pytest.raises(InfrastructureError, match="database disk image is malformed"):
        await world.step(Action(answer="SELECT * FROM books"))
    await world.close()


async def test_a_query_of_a_damaged_table_that_the_gold_query_does_not_need_is_the_agents(
    tmp_path: Path,
) -> None:
    world, file = await begun(tmp_path)
    damage(file, "pages")
    step = await world.step(Action(answer="SELECT * FROM pages"))
    assert "database disk image is malformed" in step.observation.text
    assert (step.reward, step.done) == (0, False)
    assert (await world.step(Action(answer=str(row(30)["SQL"])))).reward == 0.5
    await world.close()


@pytest.mark.parametrize(
    ("value", "kind", "message"),
    [
        ({"question": "q", "SQL": "s"}, ConfigError, "row 2: the row needs the texts"),
        ("text", ConfigError, "row 2: the row needs the texts"),
        (row(1, db_id="lost"), MissingError, "row 2 (question_id 1): there is no database"),
    ],
)
def test_a_malformed_row_is_one_line(
    tmp_path: Path, value: object, kind: type[Exception], message: str
) -> None:
    bird(tmp_path, [row(0), value])
    with pytest.raises(kind, match=re.escape(message)) as caught:
        SOURCE.load(f"sql@{tmp_path}")
    assert str(caught.value).startswith(str(tmp_path / "dev.json"))


def test_a_folder_without_bird_says_so(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match=r"dev\.json: no such file"):
        SOURCE.load(f"sql@{tmp_path}")
    for text in ("{", "[" * 100_000):
        (tmp_path / "dev.json").write_text(text)
        with pytest.raises(ConfigError, match=r"dev\.json: no JSON"):
            SOURCE.load(f"sql@{tmp_path}")
