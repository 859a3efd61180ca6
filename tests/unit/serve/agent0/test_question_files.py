"""`GET /hello?name=FILE` of `air serve evaluate`: requests of Agent0's curriculum training, a scripted model,
real files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from air.serve.evaluate.files_protocol import result
from air.serve.evaluate.row_files import Row
from air.testing import ScriptedServer
from air.train.coevolve.evaluate_service import LARGEST_BODY, MOST_TASKS
from air.worlds.proposals.scorer import Answered
from air.worlds.rows.reading import LONGEST_QUESTION
from tests.tools_server import running
from tests.unit.serve.agent0.question_file_service import ROWS, Service, results_of, service, solved


async def test_the_reward_function_of_the_original_gets_its_scores(tmp_path: Path) -> None:
    """The client is `generate_results` and `fetch` of aiming-lab/Agent0 at 3cf8bfe,
    Agent0/curriculum_train/examples/reward_function/curriculum_reward.py; the server is `hello` of
    vllm_service_init/start_vllm_server_tool.py there.

    The client splits its rows over four servers, so a file can have no row. It writes each file with an
    indent of 4 under STORAGE_PATH/temp_results, sends `/hello?name=` with the absolute path unquoted to the
    host 0.0.0.0, does not look at the response, opens the path with `.json` replaced by `_results.json`,
    reads `question` and `score`, and removes only this file. Rows without a question are empty. The client
    keeps only the last character of the proposer's answer, so an answer in its rows has one character. The
    server's response is one `message`.
    """
    asked: list[Any] = []

    def script(messages: Sequence[Any]) -> str:
        asked.append(messages)
        return solved(messages)

    with ScriptedServer(script) as model:
        async with service(tmp_path, model.url) as served:
            final: list[Any] = []
            for number, rows in enumerate([ROWS[:2], ROWS[2:], [], []]):
                path = served.write(rows, f"temp_{number}_1733000000000_4711.json")
                port = served.http.base_url.port
                response = await served.http.get(f"http://0.0.0.0:{port}/hello?name={path}")
                assert response.json() == {
                    "message": f"Processed {path}, results saved to {results_of(path)}."
                }
                assert not path.exists()
                final.extend(json.loads(results_of(path).read_text()))
                results_of(path).unlink()
            assert list(served.folder.iterdir()) == []
    assert final == [
        {
            "question": "What is 2 + 2?",
            "answer": "4",
            "score": 1.0,
            "all_outputs": ["So \\boxed{4}."] * 10,
            "extracted_results": ["4"] * 10,
        },
        {"question": "", "answer": "", "score": -1, "all_outputs": [], "extracted_results": []},
        {
            "question": "What is 2 + 3?",
            "answer": "5",
            "score": 0.0,
            "all_outputs": ["It is \\boxed{5}."] * 10,
            "extracted_results": ["5"] * 10,
        },
    ]
    assert len(asked) == 20


def test_a_row_is_scored_by_its_majority() -> None:
    """By hand: 6 of 10 replies agree with the proposer; one of ten is not above 0.1; a reply without an
    answer is in no class, but Agent0's parser calls it `None`."""
    row = Row(question="What is 12 / 2?", answer="12/2")
    answers = ["6"] * 6 + ["5"] * 3 + [None]
    found = result(row, Answered(answers, 0.0, ["r"] * 10), "forms")
    assert (found["score"], found["answer"], found["all_outputs"]) == (0.6, "6", ["r"] * 10)
    assert found["extracted_results"] == ["6"] * 6 + ["5"] * 3 + ["None"]
    alone = result(row, Answered(["6"] + [None] * 9, 0.0), "forms")
    assert (alone["score"], alone["answer"]) == (0, "6")
    unreadable = result(row, Answered([None] * 10, 0.0), "forms")
    assert (unreadable["score"], unreadable["answer"]) == (0, "")
    for blank in (Row(question="q", answer=" "), Row(question="", answer="4")):
        entry = result(blank, Answered([None], 0.0), "forms")
        assert (entry["score"], entry["answer"]) == (-1, blank.answer)


async def test_the_settings_of_the_server_hold_for_both_requests(tmp_path: Path) -> None:
    asked: list[dict[str, Any]] = []

    async def reply(request: Request) -> JSONResponse:
        asked.append(await request.json())
        message = {"role": "assistant", "content": "\\boxed{4}"}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        head = {"id": "c", "object": "chat.completion", "created": 0, "model": "m"}
        return JSONResponse({**head, "choices": [choice]})

    app = Starlette(routes=[Route("/v1/chat/completions", reply, methods=["POST"])])
    settings = {"temperature": 0.7, "top_p": 0.9, "max_tokens": 2048}
    async with running(app) as url, service(tmp_path, f"{url}/v1", k=3, **settings) as served:
        path = served.write(ROWS[:1])
        assert (await served.hello(path.name)).status_code == 200
        (row,) = json.loads(results_of(path).read_text())
        assert len(row["extracted_results"]) == 3
        body = {"tasks": [{"id": "a", "question": "What is 2 + 2?"}], "sampling": {"top_p": 0.5}}
        answer = await served.http.post("/evaluate", json=body)
        assert answer.json()["results"][0]["k"] == 3
    assert [one["top_p"] for one in asked] == [0.9] * 3 + [0.5] * 3
    for one in asked:
        limit = one.get("max_completion_tokens", one.get("max_tokens"))
        assert (one["temperature"], limit) == (0.7, 2048)


MALFORMED = [
    ("{", 400, "Invalid JSON"),
    ("", 400, "Invalid JSON"),
    ('{"question": "q"}', 400, "valid array"),
    ('[{"question": "q"}, 7]', 400, "x.json: `1`: "),
    ('[{"question": 7, "answer": "a"}]', 400, "`0.question`: "),
    ('[{"question": "q", "answer": null}]', 400, "`0.answer`: "),
    ("[" * 100_000, 400, "recursion"),
    (json.dumps([{}] * (MOST_TASKS + 1)), 400, f"at most {MOST_TASKS}"),
    ("[" + " " * LARGEST_BODY + "]", 413, f"more than {LARGEST_BODY} bytes"),
]


async def test_a_malformed_file_is_refused_and_stays(served: Service) -> None:
    path = served.folder / "x.json"
    for text, status, problem in MALFORMED:
        path.write_text(text)
        results_of(path).write_text("[]")  # of an earlier request
        response = await served.hello("x.json")
        assert (response.status_code, response.text.count("\n")) == (status, 0), text[:40]
        assert problem in response.json()["error"]
        assert list(served.folder.iterdir()) == [path]


async def test_a_failure_of_the_model_is_no_score(tmp_path: Path) -> None:
    async with service(tmp_path, "http://127.0.0.1:9/v1", k=1) as served:
        path = served.write()
        results_of(path).write_text("[]")
        response = await served.hello(path)
        assert (response.status_code, list(response.json())) == (503, ["error"])
        assert list(served.folder.iterdir()) == [path]  # so the client can ask again
        path.write_text(json.dumps(ROWS[1:2]))
        assert (await served.hello(path)).status_code == 200  # no question is for the model


async def test_a_question_that_is_too_long_has_no_answers(served: Service) -> None:
    rows = [{"question": "q" * (LONGEST_QUESTION + 1), "answer": "4"}, ROWS[0]]
    path = served.write(rows)
    assert (await served.hello(path)).status_code == 200
    long, short = json.loads(results_of(path).read_text())
    assert (long["score"], long["answer"], long["extracted_results"]) == (0, "", ["None"] * 2)
    assert short["score"] == 1
