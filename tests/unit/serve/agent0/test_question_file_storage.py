"""Which files `GET /hello?name=FILE` of `air serve evaluate` removes and writes, also beside other requests
and after failures."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from air.serve.evaluate.row_files import Questions, RowFile, RowFiles
from air.testing import ScriptedServer
from air.train.coevolve.evaluate_service import MOST_TASKS
from tests.unit.serve.agent0.question_file_service import (
    Gate,
    Service,
    ordinary_user,
    request_in_progress,
    results_of,
    service,
    solved,
)
from tests.until import until


async def test_results_that_cannot_be_stored_are_an_error(tmp_path: Path) -> None:
    async with request_in_progress(tmp_path) as (served, path, response):
        results_of(path).mkdir()
        reply = await response()
        assert reply.status_code == 503
        assert reply.json()["error"].startswith(
            f"{results_of(path).name}: the results cannot be stored"
        )
        assert sorted(served.folder.iterdir()) == [path, results_of(path)]


async def test_older_results_that_cannot_be_removed_are_an_error(tmp_path: Path) -> None:
    """The model, which cannot be reached, is not even asked."""
    async with service(tmp_path, "http://127.0.0.1:9/v1", k=1) as served:
        path = served.write()
        results_of(path).mkdir()
        response = await served.hello(path.name)
        assert response.status_code == 503
        problem = f"{results_of(path).name}: the results cannot be removed"
        assert response.json()["error"].startswith(problem)
        assert path.exists()


async def test_a_request_for_results_removes_nothing(served: Service) -> None:
    """`x_results.json` can be the results of `x.json`, and must not become a file with questions."""
    path = served.write(name="x_results.json")
    second = served.write(name="x_results_results.json")
    for one in (path, second):
        assert (await served.hello(one)).status_code == 400
    assert sorted(served.folder.iterdir()) == [path, second]


NEW = [{"question": "What is 2 + 9?", "answer": "11"}]


async def test_a_file_that_is_replaced_meanwhile_stays(tmp_path: Path) -> None:
    """Neither its questions are lost, nor are the scores of the old ones taken for theirs."""
    async with request_in_progress(tmp_path) as (served, path, response):
        served.write(NEW, "new.json").replace(path)
        reply = await response()
        assert reply.status_code == 409
        assert reply.json()["error"].startswith(f"{path.name}: has changed")
        assert list(served.folder.iterdir()) == [path]
        assert (await served.hello(path)).status_code == 200
        (row,) = json.loads(results_of(path).read_text())
        assert row["question"] == NEW[0]["question"]


async def test_a_file_that_is_gone_meanwhile_has_results(tmp_path: Path) -> None:
    async with request_in_progress(tmp_path) as (_, path, response):
        path.unlink()
        assert (await response()).status_code == 200
        assert len(json.loads(results_of(path).read_text())) == 3


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can create a file of another user")
async def test_results_stay_if_the_questions_cannot_be_removed(open_folder: Path) -> None:
    with ScriptedServer(solved) as model:
        async with service(open_folder, model.url, k=1) as served:
            # With the sticky bit, each user can remove only their own files.
            served.folder.chmod(0o1777)
            path = served.write()
            first = served.write(name="first.json")  # so that air has imported what it needs
            assert (await served.hello(first)).status_code == 200
            with ordinary_user():
                response = await served.hello(path)
            assert response.status_code == 200
            warning = f"{path} cannot be removed: Operation not permitted"
            assert response.json()["message"].endswith(f"{results_of(path)}. {warning}.")
            assert [
                line["text"]
                for line in map(json.loads, served.log.getvalue().splitlines())
                if line["event"] == "warning"
            ] == [warning]
            assert path.exists()
            assert len(json.loads(results_of(path).read_text())) == 3


async def test_only_one_request_at_a_time_has_a_file(tmp_path: Path) -> None:
    gate = Gate()
    with ScriptedServer(gate) as model:
        async with service(tmp_path, model.url, k=1) as served:
            path = served.write()
            first = asyncio.create_task(served.hello(path))
            await until(gate.asked.is_set)
            for name in (path, path.name, f"../temp_results/{path.name}"):
                second = await served.hello(name)
                assert second.status_code == 409
                assert "another request" in second.json()["error"]
            assert list(served.folder.iterdir()) == [path]
            gate.go.set()
            assert (await first).status_code == 200
            assert len(json.loads(results_of(path).read_text())) == 3
            assert (await served.hello(path)).status_code == 404


async def test_a_client_that_leaves_gets_no_results(tmp_path: Path) -> None:
    gate = Gate()
    with ScriptedServer(gate) as model:
        async with service(tmp_path, model.url, k=1, max_requests=1, max_queued=1) as served:
            first = served.write(name="first.json")
            request = asyncio.create_task(served.hello(first))
            await until(gate.asked.is_set)
            second = asyncio.create_task(served.hello(served.write(name="second.json")))
            await until(lambda: served.server.queue.waiting == 1)
            full = await served.hello(served.write(name="third.json"))
            assert (full.status_code, full.headers["retry-after"]) == (503, "1")
            request.cancel()  # its episodes end, and the second request begins
            await asyncio.gather(request, return_exceptions=True)
            await until(lambda: served.server.queue.waiting == 0)
            gate.go.set()
            assert (await second).status_code == 200
            names = sorted(path.name for path in served.folder.iterdir())
            assert names == ["first.json", "second_results.json", "third.json"]
            assert (await served.hello(first)).status_code == 200


class SlowFile(RowFile):
    """A file whose first reading lasts until `go`, as on a slow disk."""

    began, go = threading.Event(), threading.Event()

    def read(self) -> Questions:
        if not self.began.is_set():
            self.began.set()
            self.go.wait()
        return super().read()


class SlowFiles(RowFiles):
    @contextmanager
    def claimed(self, name: str) -> Iterator[RowFile]:
        with super().claimed(name) as file:
            yield SlowFile(file.name, file.path, file.results)


async def test_a_file_is_in_use_until_its_reading_has_ended(tmp_path: Path) -> None:
    """A thread that still reads for a client that has left must not meet the next request's files."""
    SlowFile.began.clear()
    SlowFile.go.clear()
    with ScriptedServer(solved) as model:
        async with service(tmp_path, model.url, SlowFiles, k=1) as served:
            path = served.write()
            try:
                request = asyncio.create_task(served.hello(path))
                await until(SlowFile.began.is_set)
                request.cancel()
                await asyncio.gather(request, return_exceptions=True)
                for _ in range(20):  # meanwhile the server learns that the client has left
                    assert (await served.hello("absent.json")).status_code == 404
                assert (await served.hello(path)).status_code == 409
            finally:
                SlowFile.go.set()
            await until(lambda: served.server.queue.running == 0)
            assert (await served.hello(path)).status_code == 200


async def test_older_results_are_removed_before_the_request_waits(tmp_path: Path) -> None:
    async with request_in_progress(tmp_path, max_requests=1) as (served, path, response):
        waiting = served.write(name="waiting.json")
        results_of(waiting).write_text("[]")
        queued = asyncio.create_task(served.hello(waiting))
        await until(lambda: not results_of(waiting).exists())
        assert (await served.hello(waiting)).status_code == 409
        assert (await response()).status_code == 200
        assert (await queued).status_code == 200
        results_of(path).write_text("[]")
        assert (await served.hello(path)).status_code == 404  # the questions are gone
        assert results_of(path).read_text() == "[]"


@pytest.mark.slow
async def test_the_results_are_never_half_written(served: Service) -> None:
    """Another program that reads as fast as it can sees no file, or a whole one."""
    rows = [{"question": "", "answer": "x" * 2000}] * MOST_TASKS
    path, seen, sizes = served.folder / "x.json", list[int](), set[int]()
    done = threading.Event()

    def reader() -> None:
        while not done.is_set():
            try:
                sizes.add(len(json.loads(results_of(path).read_text())))
                seen.append(1)
            except FileNotFoundError:
                continue

    reading = asyncio.create_task(asyncio.to_thread(reader))
    try:
        for _ in range(5):
            served.write(rows, "x.json")
            assert (await served.hello(path)).status_code == 200
            seen.clear()  # each time, the reader must see the new file
            await until(lambda: seen or reading.done())
    finally:
        done.set()
        await reading
    assert sizes == {MOST_TASKS}
