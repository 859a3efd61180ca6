"""Proposals are paid by what an executor behind HTTP answers. Its failures are ours, all else the agent's."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from air import paths
from air.actions import Action
from air.config import read_toml
from air.errors import ConfigError, InfrastructureError, MissingError
from air.worlds import conformance, sources
from air.worlds.proposals.scorer import PROBE
from air.worlds.sources import WorldTask

PROPOSAL = "<question>What is 3 + 4?</question> \\boxed{7}"
Answer = Callable[[dict[str, Any]], Response | Awaitable[Response]]


@asynccontextmanager
async def service(answer: Answer) -> AsyncIterator[tuple[str, list[dict[str, Any]]]]:
    """Serves `/evaluate` on a free port; yields the URL and the bodies that were received."""
    bodies: list[dict[str, Any]] = []

    async def evaluate(request: Request) -> Response:
        bodies.append(await request.json())
        reply = answer(bodies[-1])
        return reply if isinstance(reply, Response) else await reply

    app = Starlette(routes=[Route("/evaluate", evaluate, methods=["POST"])])
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", lifespan="off"))
    task = asyncio.create_task(server.serve())
    while not server.started:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    try:
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}", bodies
    finally:
        server.should_exit = True
        await task


def answering(*answers: str | None, calls: float = 0.0) -> Answer:
    result = {"id": "0", "answers": list(answers), "tool_calls_mean": calls}
    return lambda _: JSONResponse({"results": [result]})


def load(folder: Path, **settings: Any) -> WorldTask:
    file = folder / "proposer.json"
    file.write_text(json.dumps({"k": 4, "window": 8, **settings}))
    return sources.load(f"proposal:{file}")


async def play(task: WorldTask, reply: str) -> tuple[float, dict[str, float]]:
    world = task.make()
    await world.reset(0)
    step = await world.step(Action(answer=reply))
    assert step.done
    return step.reward, dict(world.facts())


async def test_the_world_conforms_but_no_seed_selects_anything(tmp_path: Path) -> None:
    problems = await conformance.check(load(tmp_path), [Action(answer=PROPOSAL)])
    assert set(problems) == {"different_seeds_differ"}


async def test_the_world_conforms_with_an_executor(tmp_path: Path) -> None:
    checks = [
        "any_action_is_answered",
        "a_step_after_the_end_gives_nothing",
        "a_cancelled_step_leaves_a_world_that_closes",
        "facts_are_numbers_with_fixed_names",
    ]
    async with service(answering("7", "7.0", "8", None)) as (url, bodies):
        task = load(tmp_path, url=url)
        assert await conformance.check(task, [Action(answer=PROPOSAL)], checks) == {}
        assert bodies


async def test_a_proposal_is_paid_by_both_definitions(tmp_path: Path) -> None:
    async with service(answering("7", "7.0", "8", None, calls=2.0)) as (url, bodies):
        coded = load(tmp_path, url=url, sampling={"temperature": 1.0})
        reward, facts = await play(coded, PROPOSAL)
        assert reward == pytest.approx(0.5 - 1 / 8)
        assert facts["success"] == facts["proposal_read"] == 1.0
        assert (facts["p_hat"], facts["answers_read"]) == (0.5, 0.75)
        assert (await play(coded, PROPOSAL))[0] == pytest.approx(0.5 - 2 / 8)  # a copy
        disagrees = PROPOSAL.replace("7}", "9}").replace("3 + 4", "the capital")
        assert (await play(coded, disagrees))[0] < 0
        paper = load(tmp_path, url=url, reward="published", repetition=0.0)
        assert (await play(paper, PROPOSAL))[0] == pytest.approx(1.1)
    assert bodies[0] == {
        "tasks": [{"id": "0", "question": "What is 3 + 4?"}],
        "k": 4,
        "max_turns": 1,
        "sampling": {"temperature": 1.0},
    }


async def test_answers_are_compared_by_the_rule_of_the_settings(tmp_path: Path) -> None:
    proposal = "<question>What is x + x?</question> \\boxed{2x}"
    async with service(answering("x*2", "2x", "x", None)) as (url, _):
        for equality, p in (("math", 0.5), ("forms", 0.0)):
            _, facts = await play(load(tmp_path, url=url, equality=equality), proposal)
            assert facts["p_hat"] == p


async def test_a_malformed_proposal_is_the_proposers_and_is_not_sent(tmp_path: Path) -> None:
    async with service(answering("7", "7", "7", "7")) as (url, bodies):
        for definition, reward in (("as_coded", -1.125), ("published", 0.0)):
            task = load(tmp_path, url=url, reward=definition)
            for reply in ("What is 3 + 4?", PROPOSAL * 2, PROPOSAL.replace("3", "3" * 5000)):
                assert await play(task, reply) == (reward, dict.fromkeys(task.facts, 0.0))
            assert task.unanswered == reward  # an empty reply
        assert bodies == []


async def test_a_question_that_nobody_can_answer_is_not_an_uncertain_one(tmp_path: Path) -> None:
    async with service(answering("7", None, None, None)) as (url, _):
        strict, coded = load(tmp_path, url=url), load(tmp_path, url=url, least_valid=0.0)
        assert (await play(strict, PROPOSAL))[1]["p_hat"] == 0.0
        assert (await play(coded, PROPOSAL))[1]["p_hat"] == 0.25


@pytest.mark.parametrize(
    "answer",
    [
        lambda _: JSONResponse({"error": "no"}, 503),
        lambda _: JSONResponse({"error": "no"}, 400),
        lambda _: JSONResponse({"error": "no"}, 500),
        lambda _: JSONResponse([], 500),
        lambda _: Response("{", 500),
        lambda _: Response("[" * 100_000, 500),
        lambda _: Response("[" * 100_000),
        lambda _: JSONResponse({"results": []}),
        lambda _: JSONResponse({"results": [{"answers": ["7"], "tool_calls_mean": 0}]}),
        lambda _: JSONResponse({"results": [{"answers": [7] * 4, "tool_calls_mean": 0}]}),
        lambda _: JSONResponse({"results": [{"answers": ["7"] * 4, "tool_calls_mean": -1}]}),
        lambda _: Response("{"),
    ],
)
async def test_a_scorer_that_fails_is_our_failure(answer: Answer, tmp_path: Path) -> None:
    async with service(answer) as (url, _):
        with pytest.raises(InfrastructureError, match="/evaluate"):
            await play(load(tmp_path, url=url), PROPOSAL)


def failing_at(question: str, status: int) -> Answer:
    good = answering("7", "7", "8", None)
    return lambda body: (
        Response(status_code=status) if body["tasks"][0]["question"] == question else good(body)
    )


@pytest.mark.parametrize("status", [400, 413, 503])
async def test_a_question_at_which_the_scorer_fails_is_not_answered(
    status: int, tmp_path: Path
) -> None:
    async with service(failing_at("What is 3 + 4?", status)) as (url, bodies):
        reward, facts = await play(load(tmp_path, url=url), PROPOSAL)
    assert reward == -1 / 8
    assert (facts["p_hat"], facts["answers_read"], facts["proposal_read"]) == (0.0, 0.0, 1.0)
    asked = [body["tasks"][0]["question"] for body in bodies]
    assert asked == ["What is 3 + 4?", PROBE, "What is 3 + 4?"]


async def test_a_question_for_which_the_scorer_needs_too_long_is_not_answered(
    tmp_path: Path,
) -> None:
    over = asyncio.Event()

    async def answer(body: dict[str, Any]) -> Response:
        if body["tasks"][0]["question"] != PROBE:
            await over.wait()
        return JSONResponse({"results": [{"answers": ["2"] * 4, "tool_calls_mean": 0}]})

    async with service(answer) as (url, _):
        # The answer to the probe takes 10 ms.
        reward, facts = await play(load(tmp_path, url=url, seconds=1.5), PROPOSAL)
        over.set()
    assert (reward, facts["answers_read"]) == (-1 / 8, 0.0)


async def test_a_scorer_that_is_slow_for_every_question_is_our_failure(tmp_path: Path) -> None:
    over = asyncio.Event()

    async def answer(body: dict[str, Any]) -> Response:
        await over.wait()
        return Response()

    async with service(answer) as (url, _):
        with pytest.raises(InfrastructureError, match="no answer within"):
            await play(load(tmp_path, url=url, seconds=0.05), PROPOSAL)
        over.set()


async def test_an_absent_scorer_is_our_failure(tmp_path: Path) -> None:
    async with service(answering("7")) as (url, _):
        pass
    with pytest.raises(InfrastructureError, match="/evaluate"):
        await play(load(tmp_path, url=url), PROPOSAL)


async def test_without_a_scorer_proposals_are_only_read(tmp_path: Path) -> None:
    task = load(tmp_path)
    assert (await play(task, PROPOSAL))[1]["proposal_read"] == 1.0
    assert (await play(task, "none"))[0] == 0.0 == task.unanswered


def test_settings_are_checked(tmp_path: Path) -> None:
    with pytest.raises(MissingError):
        sources.load(f"proposal:{tmp_path / 'absent.toml'}")
    with pytest.raises(ConfigError, match="no key `windw`"):
        load(tmp_path, windw=3)


def test_the_example_of_prime_rl_loads_and_its_window_is_the_batch() -> None:
    folder = paths.shipped("configs") / "agent0"
    file = folder / "example_proposal.json"
    assert sources.load(f"proposal:{file}").unanswered == -1 - 1 / 512
    run = read_toml(folder / "proposer_prime_rl.toml")
    assert json.loads(file.read_text())["window"] == run["orchestrator"]["batch_size"]
    (source,) = run["orchestrator"]["train"]["source"]
    assert source["env"]["taskset"]["tasks"] == ["proposal:configs/agent0/example_proposal.json"]
