"""The world of AgentGym's servers against a real HTTP server, whole and failing."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import os
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from air.actions.base import Action
from air.errors import InfrastructureError
from air.worlds import conformance, sources
from air.worlds.agentgym.environments import ENVIRONMENTS
from air.worlds.agentgym.sessions import sessions_of
from air.worlds.agentgym.world import AgentGymWorld
from tests.environment_server import FAULTS, LENGTH, FaultyServer
from tests.until import until

FULL = os.environ.get("AIR_FULL") == "1"
TEXTCRAFT = ENVIRONMENTS["textcraft"]
PATIENCE = 60.0


def world(server: FaultyServer, seconds: float = 20.0, **changes: object) -> AgentGymWorld:
    environment = dataclasses.replace(TEXTCRAFT, **changes) if changes else TEXTCRAFT  # type: ignore[arg-type]
    return AgentGymWorld(
        environment, server.url, seconds=seconds, retry_seconds=0.001, patience=PATIENCE
    )


def say(text: str) -> Action:
    return Action(answer=text)


async def test_an_episode_is_played_and_closed() -> None:
    async with FaultyServer().running() as server:
        played = world(server)
        assert (await played.reset(0)).text == f"Goal: {LENGTH} forward."
        steps = [await played.step(say("forward")) for _ in range(LENGTH)]
        assert [step.reward for step in steps] == [0.0, 0.0, 1.0]
        assert [step.done for step in steps] == [False, False, True]
        assert played.facts()["success"] == 1
        assert played.facts()["num_actions"] == LENGTH
        after = await played.step(say("forward"))
        assert (after.done, after.reward) == (True, 0)
        assert server.requests["/step"] == LENGTH
        await played.close()
        await played.close()
        assert not server.sessions
        assert server.requests["/close"] == 1


class Varied(FaultyServer):
    """Shows the id of the task, as real servers show another goal for each."""

    def answer(self, path: str, body: Mapping[str, Any]) -> Any:
        answer = super().answer(path, body)
        if path == "/reset":
            answer["observation"] += f" This is task {body['data_idx']}."
        return answer


async def test_it_conforms() -> None:
    async with Varied().running() as server:
        task = sources.load(f"agentgym:textcraft@{server.url}")
        forward = [say("forward")] * LENGTH
        assert await conformance.check(task, forward) == {}
        assert not server.sessions
        await server.idle()


async def test_an_error_that_the_action_causes_is_an_observation() -> None:
    async with FaultyServer().running() as server:
        played = world(server)
        await played.reset(0)
        step = await played.step(say("explode"))
        assert "cannot be parsed" in step.observation.text
        assert not step.done
        assert not step.reward
        assert played.facts()["action_is_valid"] == 0
        assert (
            server.sessions[0].actions == 1
        )  # the harmless action that showed that the server works
        await played.close()


@pytest.mark.parametrize("shares", [False, True])
async def test_an_error_that_does_not_come_again_is_a_failure(shares: bool) -> None:
    """It must come again in another session or, if there may be none, in the same one."""
    async with FaultyServer().running() as server:
        played = world(server, shares=shares)
        await played.reset(0)
        server.planned = [("/step", "error body")]
        with pytest.raises(InfrastructureError, match="bad day"):
            await played.step(say("forward"))
        await played.close()


@pytest.mark.parametrize("shares", [False, True])
async def test_an_error_that_comes_again_is_an_observation(shares: bool) -> None:
    async with FaultyServer().running() as server:
        played = world(server, shares=shares)
        await played.reset(0)
        for _ in range(2):
            assert "cannot be parsed" in (await played.step(say("explode"))).observation.text
        # A new session repeats the earlier error, too.
        assert server.created == (1 if shares else 3)
        await played.close()


async def test_an_error_of_the_server_is_a_failure() -> None:
    async with FaultyServer().running() as server:
        played = world(server)
        await played.reset(0)
        server.sessions[0].broken = True
        with pytest.raises(InfrastructureError, match="is not valid"):
            await played.step(say("forward"))
        await played.close()


@pytest.mark.parametrize(
    "fault",
    [
        "drop before",
        "drop after",
        "hang",
        "status 500",
        "garbage",
        "cut short",
        "wrong form",
        "not a number",
    ],
)
async def test_a_failure_of_the_server_is_one_and_its_step_is_not_repeated(fault: str) -> None:
    async with FaultyServer(hang_seconds=600).running() as server:
        played = world(server, seconds=0.5 if fault == "hang" else 20.0)
        await played.reset(0)
        server.planned = [("/step", fault)]
        with pytest.raises(InfrastructureError):
            await played.step(say("forward"))
        assert server.sessions[0].actions <= 1
        assert played.facts()["best_score"] == 0
        await played.close()
        assert not server.sessions
        await server.idle()


CAUSED = [
    "drop before",
    "drop after",
    "hang",
    "status 500",
    "garbage",
    "cut short",
    "wrong form",
    "not a number",
    "huge",
]


@pytest.mark.parametrize("fault", CAUSED)
async def test_an_action_that_always_fails_is_the_agents(fault: str) -> None:
    async with FaultyServer(acts={"escape": fault}, hang_seconds=600).running() as server:
        played = world(server, seconds=0.5 if fault == "hang" else 20.0)
        await played.reset(0)
        await played.step(say("forward"))
        step = await played.step(say("escape"))
        assert step.reward == 0
        if fault == "status 500":  # the session has survived
            assert "could not carry out this action: status 500" in step.observation.text
            await played.step(say("forward"))
            assert (await played.step(say("forward"))).reward == 1
        else:
            assert step.done
        await played.close()
        assert not server.sessions


async def test_what_an_action_did_before_it_failed_counts_in_the_next_trial() -> None:
    """`fire` ends the session, but only after `arm`, which fails and has an effect."""

    class Armed(FaultyServer):
        def step(self, state, action):  # type: ignore[no-untyped-def]
            if action == "arm":
                state.place = 1
                return {"error": "what?"}
            if action == "fire" and state.place == 1:
                state.broken = True
                return {"error": "gone"}
            return super().step(state, action)

    async with Armed().running() as server:
        played = world(server)
        await played.reset(0)
        assert not (await played.step(say("arm"))).done
        assert (await played.step(say("fire"))).done
        await played.close()


@pytest.mark.parametrize("fault", [pytest.param("stall", marks=pytest.mark.full), "die"])
async def test_an_action_that_takes_the_server_down_is_the_agents_alone(fault: str) -> None:
    """The other episode is hit too. It fails, and its own action is not blamed."""
    # The stall must outlast the time limit, which must be long for what a loaded machine answers late.
    seconds = 4.0 if fault == "stall" else 20.0
    down = 6.0 if fault == "stall" else 0.1
    async with FaultyServer(acts={"escape": fault}, stall_seconds=down).running() as server:
        guilty, other = world(server, seconds), world(server, seconds)
        await guilty.reset(0)
        await other.reset(0)
        escape = asyncio.create_task(guilty.step(say("escape")))
        await server.seen("/step", 1)
        innocent = asyncio.create_task(other.step(say("forward")))
        assert (await escape).done
        with pytest.raises(InfrastructureError):
            await innocent
        await guilty.close()
        await other.close()


async def test_a_server_that_stays_away_is_a_failure() -> None:
    async with FaultyServer(acts={"escape": "die"}, stall_seconds=3600).running() as server:
        played = AgentGymWorld(TEXTCRAFT, server.url, patience=0.0, retry_seconds=0.001)
        await played.reset(0)
        with pytest.raises(InfrastructureError):
            await played.step(say("escape"))
        await played.close()


async def test_actions_that_others_would_notice_are_not_repeated() -> None:
    async with FaultyServer(acts={"escape": "status 500"}).running() as server:
        played = world(server, repeats=False)
        await played.reset(0)
        assert "status 500" in (await played.step(say("escape"))).observation.text
        # The action, the known one in another session, and the harmless one in the episode's.
        assert server.requests["/step"] == 3
        await played.close()


@pytest.mark.parametrize("fault", ["drop before", "drop after", "garbage", "status 503"])
async def test_a_chance_failure_of_an_action_that_is_not_repeated_is_never_the_agents(
    fault: str,
) -> None:
    async with FaultyServer().running() as server:
        played = world(server, repeats=False)
        await played.reset(0)
        server.planned = [("/step", fault)]
        with pytest.raises(InfrastructureError):
            await played.step(say("forward"))
        await played.close()


@pytest.mark.full
async def test_an_action_that_is_not_repeated_is_the_agents_if_the_server_was_well_while_it_was_slow() -> (
    None
):
    async with FaultyServer(acts={"escape": "hang"}, hang_seconds=600).running() as server:
        # The other session has half of this time, which is 100 times what it takes.
        played = world(server, seconds=8.0, repeats=False)
        await played.reset(0)
        step = await played.step(say("escape"))
        assert step.done
        assert "no result for this action" in step.observation.text
        assert server.requests["/step"] == 2  # the action, and the known one in another session
        await played.close()
        assert not server.sessions


async def test_an_action_that_is_not_repeated_is_not_the_agents_if_the_server_was_slow_as_well() -> (
    None
):
    acts = {"escape": "hang", "inventory": "hang"}
    async with FaultyServer(acts=acts, hang_seconds=600).running() as server:
        played = world(server, seconds=0.5, repeats=False)
        await played.reset(0)
        with pytest.raises(InfrastructureError):
            await played.step(say("escape"))
        await played.close()
        await server.idle()


@pytest.mark.parametrize("repeats", [True, False])
async def test_an_action_whose_service_is_away_is_not_the_agents(repeats: bool) -> None:
    """The known actions ask every service behind the server, and not only one that works."""
    acts = {"forecast": "status 500", "a forecast": "status 500"}
    async with FaultyServer(acts=acts).running() as server:
        known = ("inventory", "a forecast")
        played = world(server, repeats=repeats, known_actions=known)
        await played.reset(0)
        with pytest.raises(InfrastructureError, match="status 500"):
            await played.step(say("forecast"))
        await played.close()


async def test_a_server_that_answers_no_action_at_all_is_a_failure() -> None:
    class Wrong(FaultyServer):
        def step(self, state, action):  # type: ignore[no-untyped-def]
            return {"obs": "the answers of another version"}

    async with Wrong().running() as server:
        played = world(server)
        await played.reset(0)
        with pytest.raises(InfrastructureError, match="is not that of textcraft"):
            await played.step(say("forward"))
        await played.close()


async def test_a_server_without_free_sessions_is_tried_in_the_episodes_own() -> None:
    class One(FaultyServer):
        def answer(self, path, body):  # type: ignore[no-untyped-def]
            return {"id": 0} if path == "/create" and self.sessions else super().answer(path, body)

    async with One(acts={"escape": "status 500"}).running() as server:
        played = world(server, shares=True, closes=False, sessions=1)
        await played.reset(0)
        assert (await played.step(say("escape"))).done
        await played.close()


async def test_a_session_is_asked_for_again() -> None:
    async with FaultyServer(rate=1.0, kinds=("drop before",)).running() as server:
        played = world(server)
        with pytest.raises(InfrastructureError):
            await played.reset(0)
        assert server.requests["/create"] == 3
        await played.close()


@pytest.mark.parametrize("kinds", [("delay",), ("hang",)])
async def test_a_cancelled_world_closes_its_session(kinds: tuple[str, ...]) -> None:
    async with FaultyServer(rate=1.0, kinds=kinds, hang_seconds=0.1).running() as server:
        for path in ("/create", "/reset", "/step"):
            played = world(server)
            before = server.requests[path]

            async def episode(played: AgentGymWorld = played) -> None:
                await played.reset(0)
                await played.step(say("forward"))

            task = asyncio.create_task(episode())
            await server.seen(path, before + 1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await played.close()
            assert not server.sessions, path


async def test_a_restarted_server_does_not_mix_two_episodes() -> None:
    async with FaultyServer().running() as server:
        first, second = world(server), world(server)
        await first.reset(0)
        server.restart()
        await second.reset(0)  # gets the id that `first` still has
        with pytest.raises(InfrastructureError, match="restarted"):
            await first.step(say("forward"))
        await first.close()
        assert list(server.sessions) == [0]  # it belongs to `second`
        assert (await second.step(say("forward"))).observation.text == "place 1"
        await second.close()


async def test_a_server_that_shares_its_sessions_gives_each_episode_its_own() -> None:
    class Sharing(FaultyServer):
        def answer(self, path, body):  # type: ignore[no-untyped-def]
            if path == "/create" and len(self.sessions) == 3:
                self.created += 1
                return {"id": self.created % 3}
            return super().answer(path, body)

    async with Sharing().running() as server:
        worlds = [world(server, shares=True, closes=False, sessions=3) for _ in range(9)]

        async def play(each: AgentGymWorld) -> float:
            await each.reset(0)
            total = sum([(await each.step(say("forward"))).reward for _ in range(LENGTH)])
            await each.close()
            return total

        # No session is shared: else an episode would be at the goal before its third step.
        assert await asyncio.gather(*map(play, worlds)) == [1.0] * 9


async def test_a_huge_action_is_not_sent() -> None:
    async with FaultyServer().running() as server:
        played = world(server)
        await played.reset(0)
        step = await played.step(say("a" * 10_000_000))
        assert "exceeds" in step.observation.text
        assert server.requests["/step"] == 0
        await played.close()


async def test_episodes_at_once_against_a_failing_server() -> None:
    # Requests that hang take as long as the time limit, which must be long enough for a slow machine.
    count, seconds = (1000, 30.0) if FULL else (100, 600.0)
    kinds = FAULTS if FULL else tuple(kind for kind in FAULTS if kind != "hang")
    before = _open()
    async with FaultyServer(rate=0.08, seed=5, kinds=kinds, hang_seconds=600).running() as server:
        results = await asyncio.gather(*(_episode(server, seconds, seed) for seed in range(count)))
        assert 0 < sum(results) < count  # both happened, or the test shows nothing
        assert set(server.faults) == set(kinds)
        assert set(server.sessions) <= server.unsure
        # An episode may have one more while the cause of a failure is looked for.
        assert server.most_sessions <= 2 * TEXTCRAFT.sessions + len(server.unsure)
        assert not sessions_of(f"textcraft@{server.url}", 0).holders
        await server.idle()
    # What earlier tests left may end meanwhile, but nothing may be added.
    await until(lambda: all(now <= then for now, then in zip(_open(), before, strict=True)))


@pytest.mark.parametrize(
    "kind",
    ["error body", "drop after", pytest.param("hang", marks=pytest.mark.full)],  # it waits for long
)
async def test_a_fault_of_any_action_is_never_an_observation(kind: str) -> None:
    """An error body breaks nothing: its session answers everything else."""
    count = (1000 if FULL else 100) if kind == "error body" else 40
    seconds = 20.0 if kind == "hang" else 600.0
    async with FaultyServer(
        rate=0.1, seed=5, kinds=(kind,), once=True, hang_seconds=3600
    ).running() as server:
        episodes = (_episode(server, seconds, seed) for seed in range(count))
        failed = count - sum(await asyncio.gather(*episodes))
        assert 0 < failed <= server.faults[kind]
        assert not server.sessions
        await server.idle()


def _open() -> tuple[int, int]:
    """The numbers of tasks and of open files of this process."""
    gc.collect()
    return len(asyncio.all_tasks()), len(list(Path("/proc/self/fd").iterdir()))


async def _episode(server: FaultyServer, seconds: float, seed: int) -> bool:
    """Plays an episode of random moves that depend on the seed, and holds each step against the rules of the
    corridor. Returns whether it was played to its end; False if a failure ended it."""
    played, place = world(server, seconds), 0
    try:
        await played.reset(seed)
        for move in random.Random(seed).choices(("forward", "forward", "back", "sing"), k=6):
            step = await played.step(say(move))
            place += {"forward": 1, "back": -1}.get(move, 0)
            there = place == LENGTH
            assert step.observation.text == f"place {place}"
            assert (step.reward, step.done) == (float(there), there)
            if there:
                break
        return True
    except InfrastructureError:
        return False
    finally:
        await played.close()
