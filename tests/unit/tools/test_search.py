"""The tool `search`: BM25 and dense search over a local corpus."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from air.errors import (
    ConfigError,
    HangingToolError,
    InfrastructureError,
    MissingError,
    UserCodeError,
)
from air.tools import ToolContext, ToolResult, ToolSet, load

ROWS: list[dict[str, Any]] = [
    {
        "id": "whale",
        "title": "Moby-Dick",
        "text": "A captain hunts a white whale across the oceans.",
    },
    {"title": "Emma", "text": "A young woman arranges marriages in a village. " * 40},
    {"id": 7, "text": "Straße und Fluss: der Wal schwimmt."},
    {"text": "白鯨は海を泳ぐ。"},
    {"text": "A whale is a mammal."},
]
ENCODER = """
import threading

from air.errors import InfrastructureError

def letters(texts):
    return [[text.lower().count(letter) for letter in "abcdefghijklmnopqrstuvwxyz"] for text in texts]

def bad_shape(texts):
    return [1.0]

def infinite(texts):
    return [[float("inf")] for text in texts]

def fails(texts):
    raise OSError("no model")

def zero(texts):
    return [[0.0, 0.0] for text in texts]

def lost(texts):
    if texts[0] == "break":
        lost.broken = True
    if getattr(lost, "broken", False):
        raise RuntimeError("the accelerator has failed")
    return letters(texts)

def lost_file(texts):
    if texts[0] == "break":
        lost_file.broken = True
    if getattr(lost_file, "broken", False):
        raise FileNotFoundError(2, "no such vocabulary")
    return letters(texts)

def picky(texts):
    if texts[0] == "gone":
        picky.gone = True
    if texts[0] == "bad" or getattr(picky, "gone", False):
        raise InfrastructureError("the server of the encoder does not answer")
    return letters(texts)

GO = threading.Event()
def hanging(texts):
    if texts[0] == "hang":
        GO.wait()
    return letters(texts)

seen = []
def prefixed(texts):
    seen.extend(texts)
    return letters(texts)

NUMBER = 3
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    lines = [json.dumps(row, ensure_ascii=False) for row in ROWS]
    (tmp_path / "corpus.jsonl").write_text("\n".join([*lines[:2], "", *lines[2:]]), "utf-8")
    (tmp_path / "encoder.py").write_text(ENCODER, "utf-8")
    return tmp_path


async def found(folder: Path, query: Any, **settings: Any) -> ToolResult:
    tools = ToolSet(load({"name": "search", "corpus": "corpus.jsonl", **settings}, folder))
    async with await tools.open(ToolContext(seed=0)) as opened:
        return await opened.call("search", {"query": query})


async def test_bm25_ranks_passages(folder: Path) -> None:
    result = await found(folder, "white WHALE hunt")
    assert result.info["ids"] == ["whale", "6"]
    assert result.info["scores"] == sorted(result.info["scores"], reverse=True)
    assert result.observation == (
        "[1] Moby-Dick\nA captain hunts a white whale across the oceans.\n\n[2] A whale is a mammal."
    )
    assert (await found(folder, "whale", top=1)).info["ids"] == ["6"]


@pytest.mark.parametrize("encoder", ["", "encoder.py:letters"], ids=["bm25", "dense"])
async def test_three_passages_are_shown_unless_top_is_set(encoder: str, folder: Path) -> None:
    """All passages fit the query."""
    texts = [f"whale number {n}" for n in range(12)]
    (folder / "corpus.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in texts))
    usual = await found(folder, "whale", encoder=encoder)
    assert len(usual.info["ids"]) == len(usual.info["scores"]) == 3
    shown = [line.split()[0] for line in usual.observation.splitlines() if line]
    assert shown == ["[1]", "[2]", "[3]"]
    more = await found(folder, "whale", encoder=encoder, top=4)
    assert more.info["ids"][:3] == usual.info["ids"]
    assert len(more.info["ids"]) == 4


@pytest.mark.parametrize(
    ("query", "ids"),
    [
        ("moby dick", ["whale"]),
        ("STRASSE", ["7"]),
        ("ｗｈａｌｅ mammal", ["6", "whale"]),
        ("海", ["5"]),
        ("submarine", []),
        ("the of and", []),
        ("!?*", []),
    ],
)
async def test_words_are_compared_without_case_and_form(
    query: str, ids: list[str], folder: Path
) -> None:
    result = await found(folder, query)
    assert (result.status, result.info["ids"]) == ("success", ids)
    assert ids or result.observation == "Nothing was found."


async def test_a_long_passage_is_cut_and_says_so(folder: Path) -> None:
    result = await found(folder, "marriages", passage_length=50)
    assert "\nA young woman arranges marriages in a village. A yo" not in result.observation
    assert result.observation.endswith("[… the first 50 of 1879 characters]")


@pytest.mark.parametrize(
    "query",
    ["", " \n", "x" * 1001, "(a+)+$ " * 140, "ﷺ" * 1000, "whale " * 166, "\x00" * 1000, "[" * 1000],
)
async def test_no_query_takes_long(query: str, folder: Path) -> None:
    """Each takes milliseconds."""
    begin = time.monotonic()
    result = await found(folder, query)
    assert time.monotonic() - begin < 10
    assert (result.status == "error") == (not query.strip() or len(query) > 1000)


async def test_dense_search_uses_the_encoder(folder: Path) -> None:
    result = await found(folder, "a whale is a mammal", encoder="encoder.py:letters", top=2)
    assert result.info["ids"][0] == "6"
    assert result.info["scores"][0] == pytest.approx(1, abs=1e-5)
    assert len(result.info["ids"]) == 2
    zero = await found(folder, "anything", encoder="encoder.py:zero", top=2)
    assert zero.info == {"ids": ["whale", "2"], "scores": [0.0, 0.0]}


async def test_an_encoder_gets_its_prefixes(folder: Path) -> None:
    from air.config import plugin

    settings = {"query_prefix": "query: ", "text_prefix": "text: "}
    await found(folder, "a whale", encoder="encoder.py:prefixed", **settings)
    seen = plugin("encoder.py:seen", folder)
    assert seen[-1] == "query: a whale"
    assert seen[0].startswith("text: Moby-Dick\nA captain")


async def test_an_encoder_that_fails_on_the_corpus_is_no_doing_of_the_agent(folder: Path) -> None:
    with pytest.raises(InfrastructureError, match="no model"):
        await found(folder, "x", encoder="encoder.py:fails")
    with pytest.raises(ConfigError, match="shape"):
        await found(folder, "x", encoder="encoder.py:bad_shape")
    with pytest.raises(ConfigError, match="not finite"):
        await found(folder, "x", encoder="encoder.py:infinite")


async def test_whose_failure_a_query_is_that_cannot_be_encoded(folder: Path) -> None:
    settings = {"corpus": "corpus.jsonl", "encoder": "encoder.py:picky"}
    tools = ToolSet(load({"name": "search", **settings}, folder))
    async with await tools.open(ToolContext(seed=0)) as opened:
        told = await opened.call("search", {"query": "bad"})
        assert told.status == "error"
        assert told.observation.startswith("The query cannot be encoded: InfrastructureError")
        assert (await opened.call("search", {"query": "good"})).status == "success"
        with pytest.raises(InfrastructureError, match=r"encoder\.py:picky fails"):
            await opened.call("search", {"query": "gone"})


async def test_an_encoder_that_no_longer_works_after_a_query_stops_the_run(folder: Path) -> None:
    """Else an agent could leave its episode out of training by any search."""
    with pytest.raises(UserCodeError, match=r"encoder\.py:lost: it fails .* accelerator"):
        await found(folder, "break", encoder="encoder.py:lost")
    with pytest.raises(UserCodeError, match="no such vocabulary"):
        await found(folder, "break", encoder="encoder.py:lost_file")


async def test_a_query_at_which_the_encoder_hangs_stops_the_run(folder: Path) -> None:
    """The episode with the query is told. Another episode waits for the encoder for the tool's time limit;
    then the error, which stops the run, names the encoder."""
    from air.config import plugin

    first, second = await episodes_at_a_hanging_encoder(folder, seconds=0.05)
    result = await first.call("search", {"query": "hang"})
    assert result.observation == "An earlier call of search still runs."
    with pytest.raises(HangingToolError, match=r"encoder\.py:hanging: .* time limit of its own"):
        await second.call("search", {"query": "a whale"})
    plugin("encoder.py:GO", folder).set()
    await first.close()
    assert (await second.call("search", {"query": "a whale"})).status == "success"
    await second.close()


async def test_a_query_waits_for_the_encoder(folder: Path) -> None:
    from air.config import plugin

    first, second = await episodes_at_a_hanging_encoder(folder, seconds=600)
    waiting = asyncio.create_task(second.call("search", {"query": "a whale"}))
    await asyncio.sleep(0.1)  # usually long enough that the query waits
    plugin("encoder.py:GO", folder).set()
    assert (await waiting).status == "success"
    await first.close()
    await second.close()


async def episodes_at_a_hanging_encoder(folder: Path, seconds: float) -> tuple[Any, Any]:
    """Opens two episodes, of which the first is at a query at which the encoder hangs. A query waits
    `seconds` for the encoder; no call of the second episode ends before that."""
    settings = {"corpus": "corpus.jsonl", "encoder": "encoder.py:hanging", "seconds": seconds}
    (search,) = load({"name": "search", **settings}, folder)
    short, long = (replace(search, seconds=limit, patience=0.0) for limit in (0.05, 3600.0))
    first = await ToolSet([short]).open(ToolContext(seed=0))
    second = await ToolSet([long]).open(ToolContext(seed=1))
    told = await first.call("search", {"query": "hang"})
    assert told.observation == "The call of search took longer than 0.05 seconds."
    return first, second


async def test_a_search_has_its_whole_time_after_it_waited_for_the_encoder(folder: Path) -> None:
    plain, dense = (
        load({"name": "search", "corpus": "corpus.jsonl", "seconds": 7.0, **more}, folder)[0]
        for more in ({}, {"encoder": "encoder.py:letters"})
    )
    assert (plain.seconds, plain.patience) == (7.0, 0.0)
    assert (dense.seconds, dense.patience) == (7.0, 7.0)
    (usual,) = load(
        {"name": "search", "corpus": "corpus.jsonl", "encoder": "encoder.py:letters"}, folder
    )
    assert (usual.seconds, usual.patience) == (60.0, 60.0)
    assert usual.state_limit > 3600  # a large index takes long


def _changed(corpus: Path, change: str) -> None:
    """Changes a corpus: to one without the lines of before, to one whose lines are as long but differ, or to
    none."""
    if change == "shorter":
        corpus.write_text("{}\n", "utf-8")
    elif change == "same length":
        corpus.write_text(corpus.read_text("utf-8").replace("whale", "shark"), "utf-8")
    else:
        corpus.unlink()


@pytest.mark.parametrize("change", ["shorter", "same length", "removed"])
async def test_a_corpus_that_changes_is_a_failure_of_ours(folder: Path, change: str) -> None:
    tools = ToolSet(load({"name": "search", "corpus": "corpus.jsonl"}, folder))
    async with await tools.open(ToolContext(seed=0)) as opened:
        _changed(folder / "corpus.jsonl", change)
        with pytest.raises(InfrastructureError, match=r"the corpus (has changed|cannot be read)"):
            await opened.call("search", {"query": "whale"})


@pytest.mark.parametrize("change", ["shorter", "same length", "removed"])
async def test_a_corpus_that_changes_before_it_is_indexed_is_a_failure_of_ours(
    folder: Path, change: str
) -> None:
    tools = ToolSet(load({"name": "search", "corpus": "corpus.jsonl"}, folder))
    _changed(folder / "corpus.jsonl", change)
    with pytest.raises(InfrastructureError, match=r"the corpus (has changed|cannot be read)"):
        await tools.open(ToolContext(seed=0))


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("{", "corpus.jsonl:2: not JSON"),
        ("[" * 100_000, "corpus.jsonl:2: not JSON"),
        ("[1]", "corpus.jsonl:2: the line has no `text`"),
        ('{"text": " "}', "corpus.jsonl:2: the line has no `text`"),
        ('{"text": "a", "title": 3}', "corpus.jsonl:2: `title` is no text"),
        (None, "has no passage"),
    ],
)
def test_a_malformed_corpus_is_refused(line: str | None, part: str, tmp_path: Path) -> None:
    text = "" if line is None else f'{{"text": "a"}}\n{line}\n'
    (tmp_path / "corpus.jsonl").write_text(text, "utf-8")
    with pytest.raises(ConfigError) as raised:
        load({"name": "search", "corpus": "corpus.jsonl"}, tmp_path)
    assert part in str(raised.value)


@pytest.mark.parametrize(
    ("settings", "kind", "part"),
    [
        ({"corpus": "none.jsonl"}, MissingError, "no such file"),
        ({}, ConfigError, "`corpus`"),
        ({"corpus": "corpus.jsonl", "top": 0}, ConfigError, "`top`"),
        ({"corpus": "corpus.jsonl", "query_prefix": "q"}, ConfigError, "need an `encoder`"),
        (
            {"corpus": "corpus.jsonl", "encoder": "encoder.py:none"},
            MissingError,
            "no object `none`",
        ),
        ({"corpus": "corpus.jsonl", "encoder": "encoder.py:NUMBER"}, ConfigError, "is no function"),
    ],
)
def test_bad_settings_are_refused(
    settings: dict[str, Any], kind: type[Exception], part: str, folder: Path
) -> None:
    with pytest.raises(kind) as raised:
        load({"name": "search", **settings}, folder)
    assert part in str(raised.value)
