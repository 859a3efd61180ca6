"""Faults of remote servers and connections: no wrong reward, and every failure is counted."""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any, ClassVar

import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import BaseRoute, Mount, Route, Router
from starlette.types import Message, Receive, Scope, Send

from air.actions.base import Action, ToolCall
from air.errors import ConfigError, InfrastructureError
from air.serve.openenv.protocol import OpenEnv
from air.serve.ors.protocol import Ors
from air.worlds import sources
from air.worlds.base import World
from air.worlds.games.players import SolverPlayer
from air.worlds.games.world import GameWorld
from air.worlds.openenv.result import tools_of
from air.worlds.ors.result import prompt_text
from air.worlds.remote.attribution import Unanswered, begin_patiently
from air.worlds.remote.conversion import Rewards, RewardsOfServer, done_of, read_tools, reward_of
from tests.episodes_server import serving
from tests.faulty_proxy import KINDS, between
from tests.until import until

TASK = "question:gsm8k5"
GAME = "game:sokoban6"
"""Each of its episodes looks different, so an observation or a reward of another episode is noticed."""
EPISODES = 1000 if os.environ.get("AIR_FULL") == "1" else 200


async def moves(seed: int) -> list[str]:
    """The moves of an episode: for every other seed those that solve its room, otherwise random ones, some of
    which are no moves."""
    if seed % 2:
        return random.Random(seed).choices(("Up", "Down", "Left", "Right", "Jump"), k=5)
    world = sources.load(GAME).world()
    await world.reset(seed)
    assert isinstance(world, GameWorld)
    return SolverPlayer().moves(world.game)[:5]  # the server ends an episode after six actions


async def played(task: sources.WorldTask, seed: int) -> list[tuple[str, float, bool]]:
    """Plays the moves of a seed. Returns each observation and reward, and whether the episode was over."""
    world = task.world()
    steps: list[tuple[str, float, bool]] = []
    try:
        await world.reset(seed)
        for move in await moves(seed):
            step = await world.step(Action(answer=move))
            steps.append((step.observation.text, step.reward, step.done))
            if step.done:
                break
    finally:
        await world.close()
    return steps


async def test_no_wrong_reward_and_every_failure_counted() -> None:
    right = {seed: await played(sources.load(GAME), seed) for seed in range(EPISODES)}
    results: Counter[str] = Counter()

    async def one(task: sources.WorldTask, seed: int) -> None:
        try:
            steps = await played(task, seed)
        except InfrastructureError:
            results["failed"] += 1
        else:
            assert steps == right[seed]
            results["whole"] += 1

    async with (
        serving(GAME, max_sessions=EPISODES) as served,
        between(served.url, share=0.2, seed=5) as (address, proxy),
    ):
        task = sources.load(f"openenv:{address}#field=message&tools=false&errors=failure")
        await asyncio.gather(*(one(task, seed) for seed in range(EPISODES)))
    harmful = sum(proxy.faults.values()) - proxy.faults[""] - proxy.faults["late"]
    assert results["failed"] == harmful
    assert results["whole"] == EPISODES - harmful
    assert results["whole"] > 0
    assert set(proxy.faults) == {"", *KINDS}
    assert served.server.client_limit.taken == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [
        *("error", "drop", "garbage", "not a number", "late"),
        pytest.param("no answer", marks=pytest.mark.full),  # a minute of waiting
    ],
)
async def test_with_probing_no_wrong_reward_and_every_failure_counted(kind: str) -> None:
    """An error breaks nothing: its environment still answers everything else. The server has a second place
    for each episode, as the documentation asks: if it is full, an action with an error is sent again in the
    episode's own environment, where it may have ended the episode."""
    count = EPISODES if kind == "error" else EPISODES // 10
    right = {seed: await played(sources.load(GAME), seed) for seed in range(count)}
    failed: list[int] = []

    async def one(task: sources.WorldTask, seed: int) -> None:
        try:
            steps = await played(task, seed)
        except InfrastructureError:
            failed.append(seed)
        else:
            assert steps == right[seed]

    async with (
        serving(GAME, max_sessions=2 * count) as served,
        between(served.url, share=0.1, seed=5) as (address, proxy),
    ):
        proxy.once, proxy.kinds = True, [kind]
        seconds = 30 if kind == "no answer" else 600
        settings = f"field=message&tools=false&timeout={seconds}"
        task = sources.load(f"openenv:{address}#{settings}")
        await asyncio.gather(*(one(task, seed) for seed in range(count)))
    assert proxy.faults[kind] > 0
    if kind == "late":
        assert not failed
    else:  # there may be a second fault while the episode is repeated
        assert 0 < len(failed) <= proxy.faults[kind]
        assert len(failed) < count
    assert served.server.client_limit.taken == 0


@pytest.mark.parametrize("kind", [*(kind for kind in KINDS if kind != "late"), "no answer"])
async def test_a_lost_connection_is_never_replaced(kind: str) -> None:
    async with serving(TASK) as served, between(served.url, share=0.0, seed=0) as (address, proxy):
        patience = 0.2 if kind == "no answer" else 600
        settings = f"field=message&tools=false&errors=failure&timeout={patience}"
        task = sources.load(f"openenv:{address}#{settings}")
        world = task.world()
        await world.reset(1)
        proxy.share, proxy.kinds = 1.0, [kind]
        failures = []
        for _ in range(3):
            with pytest.raises(InfrastructureError) as caught:
                await world.step(Action(answer="no"))
            failures.append(str(caught.value))
            proxy.share = 0.0
        assert len(set(failures)) == 1  # the first failure, again and again
        await world.close()
        await world.close()
    assert sum(proxy.faults.values()) == 2  # nothing was sent after the fault


@pytest.mark.parametrize(("kind", "protocol"), [("openenv", OpenEnv), ("ors", Ors)])
async def test_a_failure_of_the_environment_is_no_act_of_the_agent(
    kind: str, protocol: object
) -> None:
    async with serving("air.testing:unreachable", protocol=protocol) as served:
        world = sources.load(f"{kind}:{served.url}").world()
        await world.reset(1)
        for _ in range(2):
            with pytest.raises(InfrastructureError, match="letters does not answer"):
                await world.step(Action(answer="a"))
        await world.close()


@pytest.mark.parametrize(("kind", "protocol"), [("openenv", OpenEnv), ("ors", Ors)])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), "\ud800", "deep"])
async def test_an_action_that_is_no_json_is_the_agents_mistake(
    kind: str, protocol: object, value: object
) -> None:
    for _ in range(200 if value == "deep" else 0):
        value = [value]
    tools = "#tools=true" if kind == "openenv" else ""
    async with serving(TASK, protocol=protocol) as served:
        world = sources.load(f"{kind}:{served.url}{tools}").world()
        await world.reset(1)
        call = ToolCall("act", (), arguments={"answer": value})
        step = await world.step(Action(tool=call))
        assert step.observation.text.startswith("The action ")
        assert (step.reward, step.done) == (0.0, False)
        await world.close()


@pytest.mark.parametrize("places", [1, 2])
async def test_an_error_that_comes_again_is_the_agents(places: int) -> None:
    """It comes again in another environment or, if the server is full, in the same one."""
    async with (
        serving(TASK, max_sessions=places) as served,
        between(served.url, share=0.0, seed=0) as (address, proxy),
    ):
        world = sources.load(f"openenv:{address}#field=message&tools=false").world()
        await world.reset(1)
        proxy.acts = {"bad move": "error"}
        for count in (1, 2):
            step = await world.step(Action(answer="bad move"))
            assert (step.observation.text, step.done) == ("[error] out of memory", False)
            # In another environment, the earlier errors come again, too.
            assert proxy.faults["error"] == (2 * count if places == 1 else [2, 5][count - 1])
        proxy.acts = {}
        await world.close()


async def test_in_another_environment_than_the_same_an_error_is_the_agents() -> None:
    """Otherwise a bad move would be an escape from every server whose environments differ."""
    async with serving(TASK) as served, between(served.url, share=0.0, seed=0) as (address, proxy):
        world = sources.load(f"openenv:{address}#field=message&tools=false").world()
        await world.reset(1)
        for bad_move in ("first", "second"):  # when "second" is repeated, "first" has no error
            proxy.acts = {bad_move: "error"}
            step = await world.step(Action(answer=bad_move))
            assert (step.observation.text, step.done) == ("[error] out of memory", False)
        proxy.acts = {}
        await world.close()


@pytest.mark.parametrize("places", [1, 2])
async def test_an_error_that_does_not_come_again_is_a_failure(places: int) -> None:
    async with (
        serving(TASK, max_sessions=places) as served,
        between(served.url, share=1.0, seed=0) as (address, proxy),
    ):
        proxy.once, proxy.kinds = True, ["error"]
        world = sources.load(f"openenv:{address}#field=message&tools=false").world()
        await world.reset(1)
        for _ in range(2):
            with pytest.raises(InfrastructureError, match="out of memory"):
                await world.step(Action(answer="no"))
        assert proxy.faults["error"] == 1
        await world.close()


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["drop", "no answer", "garbage", "not a number"])
async def test_an_action_that_always_fails_is_the_agents(fault: str) -> None:
    patience = 4 if fault == "no answer" else 600
    async with (
        serving(TASK, max_sessions=1) as served,
        between(served.url, share=0.0, seed=0) as (address, proxy),
    ):
        world = sources.load(
            f"openenv:{address}#field=message&tools=false&timeout={patience}"
        ).world()
        await world.reset(1)
        first = await world.step(Action(answer="no"))
        assert first.reward == pytest.approx(-0.1)
        proxy.acts = {"escape": fault}
        step = await world.step(Action(answer="escape"))
        assert (step.done, step.reward) == (True, 0.0)
        assert proxy.faults[fault] == 3  # in three environments, one after the other
        await world.close()


async def test_a_tool_that_is_never_reached_is_the_agents_if_the_others_are() -> None:
    async with serving(TASK) as served, between(served.url, share=0.0, seed=0) as (address, proxy):
        world = sources.load(f"openenv:{address}#field=message&tools=true").world()
        await world.reset(1)
        assert (await world.step(Action(answer="no"))).reward == pytest.approx(-0.1)
        proxy.acts = {"escape": "unreachable"}
        step = await world.step(Action(answer="escape"))
        assert (step.done, step.reward) == (True, 0.0)
        await world.close()


async def test_a_server_that_reaches_none_of_its_tools_is_a_failure() -> None:
    async with serving(TASK) as served, between(served.url, share=0.0, seed=0) as (address, proxy):
        world = sources.load(f"openenv:{address}#field=message&tools=true").world()
        await world.reset(1)
        proxy.acts = {"call_tool": "unreachable", "list_tools": "unreachable"}
        with pytest.raises(InfrastructureError, match="no tool server"):
            await world.step(Action(answer="no"))
        await world.close()


@pytest.mark.slow
async def test_an_action_that_always_ends_a_server_that_is_started_again_is_the_agents() -> None:
    async with serving(TASK) as served, between(served.url, share=0.0, seed=0) as (address, proxy):
        task = sources.load(f"openenv:{address}#field=message&tools=false")
        guilty, innocent = task.world(), task.world()
        await guilty.reset(1)
        await innocent.reset(1)
        proxy.acts, proxy.refusals = {"escape": "die"}, 2
        step = await guilty.step(Action(answer="escape"))
        assert (step.done, step.reward) == (True, 0.0)
        assert proxy.faults["die"] == 3
        assert proxy.faults["away"] >= 4
        with pytest.raises(InfrastructureError, match="connection was lost"):
            await innocent.step(Action(answer="no"))
        await guilty.close()
        await innocent.close()


@pytest.mark.slow
async def test_of_several_episodes_that_end_the_server_at_once_none_is_spared() -> None:
    count = 4
    async with (
        serving(GAME, max_sessions=4 * count) as served,
        between(served.url, share=0.0, seed=1) as (address, proxy),
    ):
        proxy.acts, proxy.refusals = {"escape": "die"}, 1
        task = sources.load(f"openenv:{address}#field=message&tools=false")
        together = asyncio.Barrier(count)

        async def escape(seed: int) -> tuple[bool, float]:
            world = task.world()
            await world.reset(seed)
            await world.step(Action(answer="Jump"))
            await together.wait()
            step = await world.step(Action(answer="escape"))
            await world.close()
            return step.done, step.reward

        assert await asyncio.gather(*map(escape, range(count))) == [(True, 0.0)] * count


@pytest.mark.parametrize("patience", [0.0, 1.0])
async def test_a_repetition_begins_when_the_server_is_back(patience: float) -> None:
    tries = 0

    async def begin() -> None:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise Unanswered("no connection", "lost")

    if not patience:
        with pytest.raises(Unanswered):
            await begin_patiently(begin, patience, 0.01)
        assert tries == 1
        return
    await begin_patiently(begin, 600.0, 0.01)
    assert tries == 3


async def test_a_fault_that_does_not_come_again_is_a_failure() -> None:
    async with serving(TASK) as served, between(served.url, share=0.0, seed=0) as (address, proxy):
        world = sources.load(f"openenv:{address}#field=message&tools=false").world()
        await world.reset(1)
        proxy.share, proxy.kinds = 1.0, ["drop"]
        step = asyncio.create_task(world.step(Action(answer="no")))
        await until(lambda: proxy.faults["drop"])
        proxy.share = 0.0
        with pytest.raises(InfrastructureError, match="connection was lost"):
            await step
        await world.close()


async def test_an_environment_that_broke_inside_is_a_failure_and_bad_moves_are_none() -> None:
    async with (
        serving("game:sokoban6") as served,
        between(served.url, share=0.0, seed=0) as (address, proxy),
    ):
        world = sources.load(f"openenv:{address}#field=message&tools=false").world()
        await world.reset(1)
        proxy.acts = {"bad move": "error"}
        for _ in range(4):
            assert "[error]" in (await world.step(Action(answer="bad move"))).observation.text
        assert "[error]" not in (await world.step(Action(answer="Up"))).observation.text
        proxy.broken |= proxy.clients
        with pytest.raises(InfrastructureError, match="out of memory"):
            await world.step(Action(answer="Up"))
        await world.close()


async def test_an_action_that_always_wrecks_its_environment_is_the_agents() -> None:
    async with serving(TASK) as served, between(served.url, share=0.0, seed=0) as (address, proxy):
        task = sources.load(f"openenv:{address}#field=message&tools=false")
        guilty, innocent = task.world(), task.world()
        await guilty.reset(1)
        proxy.acts = {"escape": "break"}
        step = await guilty.step(Action(answer="escape"))
        assert (step.done, step.reward) == (True, 0.0)
        await innocent.reset(1)
        proxy.wrecked |= proxy.clients
        for _ in range(2):
            with pytest.raises(InfrastructureError, match="out of memory"):
                await innocent.step(Action(answer="no"))
        await guilty.close()
        await innocent.close()


async def test_an_episode_of_null_rewards_is_a_failure_until_the_server_sends_a_number() -> None:
    """Then it counts with the lowest reward: an agent must not escape a bad one by NaN."""
    async with serving(TASK) as served, between(served.url, share=0.0, seed=0) as (address, proxy):
        task = sources.load(f"openenv:{address}#field=message&tools=false")
        proxy.acts = {"null": "null"}
        world = task.world()
        await world.reset(1)
        with pytest.raises(InfrastructureError, match="without any reward"):
            await _act_to_the_end(world, ["null"])
        with pytest.raises(InfrastructureError, match="without any reward"):
            await world.step(Action(answer="null"))
        await world.close()
        world = task.world()
        await world.reset(1)
        rewards = await _act_to_the_end(world, ["null", "no"])
        assert rewards[0] == 0.0
        assert set(rewards[1:]) == {-0.1}
        facts = await world.close()
        assert facts["num_null_rewards"] == 1
        assert facts.keys() == task.facts.keys()
        world = task.world()
        await world.reset(1)
        lowest = [0.0] * (len(rewards) - 1) + [-0.1]
        assert await _act_to_the_end(world, ["null"]) == lowest
        assert (await world.close())["num_null_rewards"] == len(rewards)


def test_an_episode_of_null_rewards_earns_nothing_on_a_server_that_only_pays() -> None:
    server = RewardsOfServer("http://h")
    assert Rewards(server).counted(0.5, done=True) == 0.5
    assert Rewards(server).counted(None, done=True) == 0.0


async def _act_to_the_end(world: World[Action], answers: Sequence[str]) -> list[float]:
    """Plays an episode with these answers, the last one again and again. Returns the rewards."""
    rewards: list[float] = []
    done = False
    while not done:
        step = await world.step(Action(answer=answers[min(len(rewards), len(answers) - 1)]))
        rewards.append(step.reward)
        done = step.done
    return rewards


class Transient(Ors):
    """Answers calls at random by an error that does not come again if the episode is repeated."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.errors = 0
        self._random = random.Random(5)
        self._steps: dict[str, tuple[int, int]] = {}
        self._hit: set[tuple[int, int]] = set()

    def routes(self) -> list[BaseRoute]:
        inner = Router(super().routes())

        async def harm(scope: Scope, receive: Receive, send: Send) -> None:
            path = scope["path"]
            if not path.endswith(("/create", "/call")):
                await inner(scope, receive, send)
                return
            message = await receive()
            session = dict(scope["headers"])[b"x-session-id"].decode()
            body = json.loads(message["body"])
            if path.endswith("/create"):
                self._steps[session] = body["index"], 0
            elif self._fails(session):
                self.errors += 1
                await PlainTextResponse("event: error\ndata: out of memory\n\n")(
                    scope, receive, send
                )
                return
            messages = iter([message])

            async def again() -> Message:
                return next(messages, None) or await receive()

            await inner(scope, again, send)

        return [Mount("/", harm)]

    def _fails(self, session: str) -> bool:
        index, steps = self._steps[session]
        self._steps[session] = index, steps + 1
        near = {(index, steps - 1), (index, steps)}  # a call may be sent again at once
        fails = not near & self._hit and self._random.random() < 0.1
        if fails:
            self._hit.add((index, steps))
        return fails


async def test_an_error_of_any_call_of_ors_is_never_an_observation() -> None:
    count = EPISODES // 10
    right = {seed: await played(sources.load(GAME), seed) for seed in range(count)}
    servers: list[Transient] = []
    failed: list[int] = []

    def transient(*args: Any) -> Transient:
        servers.append(Transient(*args))
        return servers[0]

    async def one(task: sources.WorldTask, seed: int) -> None:
        try:
            steps = await played(task, seed)
        except InfrastructureError:
            failed.append(seed)
        else:
            assert steps == right[seed]

    async with serving(GAME, protocol=transient, max_sessions=2 * count, seeds=count) as served:
        task = sources.load(f"ors:{served.url}")
        await asyncio.gather(*(one(task, seed) for seed in range(count)))
    # There may be a second fault while the episode is repeated.
    assert 0 < len(failed) <= servers[0].errors
    assert len(failed) < count


class Harmed(Ors):
    """Answers a call with a word of `answers` by what gives no result, and `image` by an image."""

    answers: ClassVar = {
        "forget": "event: task_id\ndata: 1\n\nevent: error\ndata: unknown task_id\n\n",
        "stop": "event: chunk\ndata: {\n\n",
        "garble": "event: end\ndata: {\n\n",
        "list": "event: end\ndata: []\n\n",
        "empty": 'event: end\ndata: {"ok": true, "output": null}\n\n',
        "over": 'event: end\ndata: {"ok": false, "reason": "episode_finished"}\n\n',
        "infinite": 'event: end\ndata: {"ok": true, "output": {"reward": -Infinity}}\n\n',
    }
    image = (
        'event: end\ndata: {"ok": true, "output": {"reward": 0.5, "blocks": '
        '[{"type": "text", "text": "A map:"}, {"type": "image", "data": ""}]}}\n\n'
    )

    def routes(self) -> list[BaseRoute]:
        inner = Router(super().routes())

        async def harm(scope: Scope, receive: Receive, send: Send) -> None:
            if not scope["path"].endswith("/call"):
                await inner(scope, receive, send)
                return
            message = await receive()
            word = json.loads(message["body"])["input"]["answer"]
            if answer := {**self.answers, "image": self.image}.get(word):
                await PlainTextResponse(answer)(scope, receive, send)
                return
            messages = iter([message])

            async def again() -> Message:
                return next(messages, None) or await receive()

            await inner(scope, again, send)

        return [Mount("/", harm)]


@pytest.mark.parametrize("word", Harmed.answers)
async def test_a_call_of_ors_that_never_has_a_result_is_the_agents(word: str) -> None:
    async with serving(TASK, protocol=Harmed) as served:
        world = sources.load(f"ors:{served.url}").world()
        await world.reset(1)
        assert (await world.step(Action(answer="no"))).reward == pytest.approx(-0.1)
        step = await world.step(Action(answer=word))
        assert (step.done, step.reward) == (True, 0.0)
        await world.close()


async def test_an_image_is_no_failure_since_the_agent_may_ask_for_it() -> None:
    async with serving(TASK, protocol=Harmed) as served:
        world = sources.load(f"ors:{served.url}").world()
        await world.reset(1)
        step = await world.step(Action(answer="image"))
        assert step.observation.text == "A map:\n[a block that is no text is not shown]"
        assert (step.done, step.reward) == (False, 0.5)
        await world.close()


def test_a_prompt_with_an_image_is_a_failure() -> None:
    with pytest.raises(InfrastructureError, match="an image"):
        prompt_text([{"type": "image", "data": ""}])


@pytest.mark.slow
async def test_a_call_of_ors_that_is_always_slow_is_the_agents() -> None:
    async with serving("tests.slow_world:slow", protocol=Ors, max_sessions=1) as served:
        world = sources.load(f"ors:{served.url}#timeout=4").world()
        await world.reset(1)
        assert (await world.step(Action(answer="quick"))).reward == 0
        step = await world.step(Action(answer="slow"))
        assert (step.done, step.reward) == (True, 0.0)
        await world.close()


async def test_a_server_without_websockets_is_refused_by_the_name_of_its_version() -> None:
    async with serving(TASK, protocol=Ors) as served:  # like OpenEnv 0.1, it speaks only HTTP
        world = sources.load(f"openenv:{served.url}").world()
        with pytest.raises(InfrastructureError, match=r"OpenEnv 0\.1 speaks only HTTP"):
            await world.reset(1)
        await world.close()


async def test_after_a_cancelled_step_no_answer_is_taken_for_another() -> None:
    async with serving(TASK) as served, between(served.url, share=0.0, seed=0) as (address, proxy):
        world = sources.load(f"openenv:{address}#field=message&tools=false").world()
        await world.reset(1)
        proxy.share, proxy.kinds = 1.0, ["no answer"]
        step = asyncio.create_task(world.step(Action(answer="no")))
        await until(lambda: proxy.faults["no answer"])
        step.cancel()
        await asyncio.gather(step, return_exceptions=True)
        with pytest.raises(InfrastructureError, match="not answered"):
            await world.step(Action(answer="no"))
        await world.close()


@pytest.mark.parametrize(
    "url",
    ["http://[bad", "http://a\u2100b", "http://a b", "http://h:99999", "http://h:0", "ftp://h"],
)
def test_a_malformed_url_is_one_clear_error(url: str) -> None:
    with pytest.raises(ConfigError, match="no URL"):
        sources.load(f"openenv:{url}")


@pytest.mark.parametrize("value", ["1", 10**400, float("nan"), [1]])
def test_a_reward_that_is_no_number(value: object) -> None:
    with pytest.raises(InfrastructureError, match="no finite number"):
        reward_of(value, "http://h")


@pytest.mark.parametrize("value", ["false", 0, []])
def test_an_end_that_is_neither_true_nor_false(value: object) -> None:
    with pytest.raises(InfrastructureError, match="not true or false"):
        done_of(value, "http://h")


def test_a_tool_may_lack_its_description_and_its_arguments() -> None:
    rows = [
        {"name": "a"},
        {"name": "b", "description": None, "input_schema": None},
        {"name": "c", "description": "C.", "inputSchema": {"properties": None}},
        {"name": "d", "input_schema": {"properties": {"x": {"type": "string"}}}},
    ]
    tools = read_tools(rows, "http://h")
    assert tools == tools_of({"observation": {"tools": rows}}, "http://h")
    assert [tool.text for tool in tools] == [
        "- a:  Arguments: {}",
        "- b:  Arguments: {}",
        "- c: C. Arguments: {}",
        '- d:  Arguments: {"x": {"type": "string"}}',
    ]


@pytest.mark.parametrize(
    "rows",
    [
        None,
        "a",
        {"name": "a"},
        ["a"],
        [{}],
        [{"name": None}],
        [{"name": ""}],
        [{"name": ["a"]}],
        [{"name": 1}],
        [{"name": "a", "description": 1}],
        [{"name": "a", "description": ["b"]}],
        [{"name": "a", "input_schema": [1]}],
        [{"name": "a", "inputSchema": "x"}],
        [{"name": "a", "input_schema": 1}],
        [{"name": "a", "input_schema": {"properties": ["x"]}}],
        [{"name": "a", "input_schema": {"properties": "x"}}],
    ],
)
def test_a_malformed_list_of_tools_is_a_failure_of_the_server(rows: Any) -> None:
    with pytest.raises(InfrastructureError, match=r"^http://h: .*tool") as caught:
        read_tools(rows, "http://h")
    assert "\n" not in str(caught.value)


def answers(path: str, text: str) -> Route:
    """A route that answers every request for `path` with `text`."""

    async def answer(request: Request) -> PlainTextResponse:
        return PlainTextResponse(text)

    return Route(path, answer, methods=["GET", "POST"])


@pytest.mark.parametrize(
    "text",
    [
        "[1]",
        "{}",
        '{"action": [1]}',
        '{"action": {"properties": ["tool_name"]}}',
        '{"action": {"properties": 1}}',
        "[" * 100_000,
    ],
    ids=["list", "empty", "action", "properties", "number", "deep"],
)
async def test_a_malformed_schema_of_actions_is_a_failure_of_the_server(text: str) -> None:
    class Malformed(OpenEnv):
        def routes(self) -> Sequence[BaseRoute]:
            return [answers("/schema", text), *super().routes()]

    async with serving(TASK, protocol=Malformed) as served:
        world = sources.load(f"openenv:{served.url}").world()
        with pytest.raises(InfrastructureError, match=r"^http://[^ ]+/schema: "):
            await world.reset(1)
        await world.close()


async def test_a_schema_of_actions_without_properties_has_no_tools() -> None:
    class Bare(OpenEnv):
        def routes(self) -> Sequence[BaseRoute]:
            return [answers("/schema", '{"action": {"properties": null}}'), *super().routes()]

    async with serving(TASK, protocol=Bare) as served:
        world = sources.load(f"openenv:{served.url}#field=message").world()
        assert (await world.reset(1)).text
        assert (await world.step(Action(answer="no"))).reward == pytest.approx(-0.1)
        await world.close()


@pytest.mark.parametrize(
    "text",
    [
        "[1]",
        '{"tools": null}',
        '{"tools": [{"name": "a", "input_schema": [1]}]}',
        '{"tools": [], "terminal_tool": {}}',
        '{"tools": [], "terminal_tool": {"name": "end", "arg": ["x"]}}',
        '{"tools": ' + "[" * 100_000,
    ],
    ids=["list", "null", "schema", "nameless", "argument", "deep"],
)
async def test_malformed_tools_of_ors_are_a_failure_of_the_server(text: str) -> None:
    class Malformed(Ors):
        def routes(self) -> Sequence[BaseRoute]:
            return [answers("/{env}/task_tools", text), *super().routes()]

    async with serving(TASK, protocol=Malformed) as served:
        world = sources.load(f"ors:{served.url}").world()
        with pytest.raises(InfrastructureError, match=r"^http://"):
            await world.reset(1)
        await world.close()
