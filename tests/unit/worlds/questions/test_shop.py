"""The shop: its search, its pages, WebShop's reward, and players whose earnings are worked out."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable

import pytest

from air.actions.base import Action
from air.worlds.base import Step
from air.worlds.questions import SOURCE
from air.worlds.questions.shop import players
from air.worlds.questions.shop.catalogue import Product, goods
from air.worlds.questions.shop.episode import ShopEpisode
from air.worlds.questions.shop.goals import LEVELS, Goal, goal, reward
from air.worlds.questions.shop.kinds import KINDS
from air.worlds.questions.shop.search import Index, index
from air.worlds.sources import VALIDATION_SEED


def test_the_goods_are_as_the_kinds_say() -> None:
    assert len(goods()) == 40 * len(KINDS)
    for asin, product in goods().items():
        assert re.fullmatch("B0[0-9A-Z]{8}", asin)
        assert set(product.attributes) <= set(product.kind.attributes)
        assert set(product.options) == set(product.kind.options)
        assert all(len(values) > 1 for values in product.options.values())
        assert product.kind.prices[0] - 1 < product.price < product.kind.prices[1]
    for kind in KINDS:
        values = [value for values in kind.options.values() for value in values]
        assert len(values) == len(set(values))
        assert not {"buy now", "features", "description", "reviews", "< prev"} & set(values)


def test_bm25_scores_by_rarity_count_and_length() -> None:
    texts = {
        "a": "red lamp",
        "b": "red lamp lamp lamp",
        "c": "blue lamps and a lot of other words about it",
        "d": "red chair",
    }
    found = Index(texts).find
    assert found("lamp") == ["b", "a", "c"]
    assert found("red chair") == ["d", "a", "b"]
    assert found("BLUE, lamp!") == ["c", "b", "a"]
    assert found("nothing here") == []
    assert found("") == []


def test_bm25_worked_by_hand() -> None:
    """Two texts of one and three words: idf of a word in one of two is log(1 + 1.5/1.5) = log 2."""
    weights = dict(Index({"a": "x", "b": "x y y"})._weights["y"])
    saturated = 2 * 2.2 / (2 + 1.2 * (0.25 + 0.75 * 3 / 2))
    assert weights == {"b": pytest.approx(math.log(2) * saturated)}


def test_a_title_finds_its_product() -> None:
    for product in list(goods().values())[::40]:
        assert product.asin in index().find(product.title)[:3]


def test_a_search_for_very_much_takes_linear_time() -> None:
    start = time.process_time()
    index().find("lamp " * 200_000)
    assert time.process_time() - start < 20


def test_reward_by_hand() -> None:
    wanted = product_of("desk lamp")
    first, second = wanted.attributes[:2]
    color = wanted.options["color"][0]
    asked = Goal(wanted, (first, second), {"color": color}, math.ceil(wanted.price / 10) * 10.0)
    assert reward(asked, wanted, {"color": color}) == 1.0
    assert reward(asked, wanted, {}) == 3 / 4
    assert reward(asked, wanted, {"color": "mauve", "size": color}) == 3 / 4
    cheap = Goal(wanted, (first, second), {"color": color}, wanted.price - 5)
    assert reward(cheap, wanted, {"color": color}) == 3 / 4
    no_such = Goal(wanted, (first, "solid gold"), {}, 1000.0)
    assert reward(no_such, wanted, {}) == 2 / 3
    shoe = product_of("running shoe")
    assert reward(asked, shoe, {"color": color}) == 0.0


def test_another_kind_counts_by_its_nouns_and_its_place() -> None:
    """A floor lamp shares one of two nouns with a desk lamp; a bar and a case share none with anything."""
    asked = Goal(product_of("desk lamp"), ("usb powered",), {}, 10_000.0)
    assert reward(asked, product_of("floor lamp"), {}) == 1 / 2
    assert reward(asked, product_of("coffee table"), {}) == 0.0
    asked = Goal(product_of("phone case"), ("travel size",), {}, 10_000.0)
    charger = next(
        p for p in goods().values() if "travel size" in p.attributes and "charger" in p.kind.name
    )
    assert reward(asked, charger, {}) == 1.0


def product_of(kind: str) -> Product:
    return next(product for product in goods().values() if product.kind.name == kind)


@pytest.mark.parametrize("level", LEVELS)
def test_goals_are_satisfied_by_what_they_were_made_from(level: int) -> None:
    for seed in range(100):
        asked = goal(level, seed)
        assert asked == goal(level, seed)
        assert asked.price_limit > asked.product.price
        assert reward(asked, asked.product, asked.options) == 1.0
        assert len(asked.options) == (len(asked.product.options) if level == 3 else level - 1)
        assert all(f"{name}: {value}" in asked.instruction for name, value in asked.options.items())
        assert all(attribute in asked.instruction for attribute in asked.attributes)
        assert f"{asked.price_limit:.2f} dollars" in asked.instruction


def test_validation_asks_for_no_goods_of_training() -> None:
    train = {goal(None, seed).product.asin for seed in range(2000)}
    validation = {goal(None, VALIDATION_SEED + seed).product.asin for seed in range(500)}
    assert len(validation) > 100
    assert not train & validation


def visit(seed: int = 0, level: int | None = None) -> tuple[ShopEpisode, Callable[[str], str]]:
    """An episode, and a function that does one turn and returns what is shown."""
    episode = ShopEpisode(level)
    episode.start(seed)
    return episode, lambda answer: episode.act(answer).observation.text


def test_pages_are_webshops() -> None:
    asked = goal(3, 0)
    episode = ShopEpisode(3)
    assert episode.start(0) == (
        f"WebShop [SEP] Instruction: [SEP] {asked.instruction} [SEP] Search\n"
        "Available actions: search[<content>]"
    )
    shown = episode.act(f"search[{asked.product.kind.name}]").observation.text
    head = f"Instruction: [SEP] {asked.instruction} [SEP] Back to Search [SEP] "
    assert shown.startswith(head + "Page 1 (Total results: 50) [SEP] Next > [SEP] B0")
    offered = shown.rpartition("Available actions: ")[2].split(", ")
    assert offered[:2] == ["click[back to search]", "click[next >]"]
    assert len(offered) == 12
    shown = episode.act(offered[2]).observation.text
    assert "Description [SEP] Features [SEP] Reviews [SEP] Buy Now" in shown
    assert shown.endswith("click[description], click[features], click[reviews], click[buy now]")


def test_moving_about() -> None:
    asked = goal(3, 0)
    episode, turn = visit(0, 3)
    results = turn(f"search[{asked.product.title}]")
    second = turn("click[next >]")
    assert "Page 2" in second
    assert "< Prev" in second
    assert turn("click[< prev]") == results
    product = turn(f"click[{asked.product.asin.lower()}]")
    value = next(iter(asked.options.values()))
    assert f"You have clicked {value}" in turn(f"CLICK[ {value.upper()} ]")
    assert asked.product.features[0] in turn("click[Features]")
    assert f"You have clicked {value}" in turn("click[< prev]")
    assert turn("click[< prev]") == results
    assert turn(f"click[{asked.product.asin}]") == product
    assert turn("click[back to search]").startswith("WebShop")
    assert episode.facts()["action_is_valid"] == 1.0


@pytest.mark.parametrize(
    "action",
    [
        "click[buy now]",
        "click[B000000000]",
        "search[]",
        "buy",
        "",
        "click[search]",
        "search[x",
        "x" * 100_000,
    ],
)
def test_what_the_page_does_not_offer_changes_nothing(action: str) -> None:
    episode, turn = visit()
    first = ShopEpisode(None).start(0)
    shown = turn(action)
    assert shown.endswith(first)
    assert shown.startswith("The page does not offer ")
    assert len(shown) < len(first) + 200
    assert episode.facts()["action_is_valid"] == 0.0


def test_turns_and_actions_are_limited() -> None:
    episode = ShopEpisode(None)
    episode.start(0)
    ends = [episode.act("search[lamp]").done for _ in range(11)]
    assert ends == [False] * 10 + [True]
    episode = ShopEpisode(None)
    episode.start(0)
    many = "||".join(["search[lamp]"] * 10_000)
    assert [episode.act(many).done for _ in range(3)] == [False, False, True]
    assert episode.facts()["num_actions"] == 30


def test_a_second_value_of_an_option_replaces_the_first() -> None:
    """Choosing every value in turn earns no more than choosing one."""
    for seed in range(20):
        asked = goal(3, seed)
        episode, turn = visit(seed, 3)
        turn(f"search[{asked.product.title}] || click[{asked.product.asin}]")
        step = Step(None)  # type: ignore[arg-type]
        for name, values in asked.product.options.items():
            chosen = asked.options[name]
            others = [value for value in values if value != chosen]
            step = episode.act(" || ".join(f"click[{v}]" for v in [asked.options[name], others[0]]))
        step = episode.act("click[buy now]")
        wishes = len(asked.attributes) + len(asked.options) + 1
        assert step.reward == pytest.approx(1 - len(asked.options) / wishes)
        assert episode.facts()["success"] == 0.0


@pytest.mark.parametrize("level", [None, *LEVELS])
def test_a_perfect_player_buys_the_right_thing(level: int | None) -> None:
    for seed in range(50):
        episode = ShopEpisode(level)
        observation, player = episode.start(seed), players.perfect(level, seed)
        step = episode.act(player(observation))
        while not step.done:
            step = episode.act(player(step.observation.text))
        assert step.reward == 1.0
        assert episode.facts()["success"] == 1.0


def test_a_hasty_player_earns_what_chance_gives() -> None:
    """It buys one of ten goods of the kind, without options: a mean over the ten, by sets of attributes."""
    mean = variance = total = 0.0
    for seed in range(150):
        asked = goal(3, seed)
        shown = [goods()[asin] for asin in index().find(asked.product.kind.name)[:10]]
        most = len(asked.attributes) + len(asked.options) + 1
        rewards = []
        for product in shown:
            assert product.kind == asked.product.kind
            satisfied = len(set(asked.attributes) & set(product.attributes))
            rewards.append((satisfied + (product.price <= asked.price_limit)) / most)
        average = sum(rewards) / 10
        mean += average
        variance += sum(r**2 for r in rewards) / 10 - average**2
        episode = ShopEpisode(3)
        player = players.hasty(seed)
        step = episode.act(player(episode.start(seed)))
        total += episode.act(player(step.observation.text)).reward
    assert 0 < mean < 150
    assert abs(total - mean) < 3 * math.sqrt(variance)


async def test_random_clicks_are_legal_and_the_world_plays_them_again() -> None:
    world = SOURCE.load("shop-level2").world()

    async def play(seed: int) -> list[Step]:
        observation, player = await world.reset(seed), players.random_clicks(seed)
        steps, text = [], observation.text
        while not (steps and steps[-1].done):
            steps.append(await world.step(Action(answer=player(text))))
            text = steps[-1].observation.text
        return steps

    for seed in range(10):
        assert await play(seed) == await play(seed)
        assert world.facts()["action_is_valid"] == 1.0
    await world.close()
