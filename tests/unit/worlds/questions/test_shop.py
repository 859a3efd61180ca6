"""The shop: its search, its pages, WebShop's reward, and players whose earnings are worked out."""

from __future__ import annotations

import math
import re
import time
from collections import defaultdict
from collections.abc import Callable

import pytest

from air.actions.base import Action
from air.worlds.base import Observation, Step
from air.worlds.questions import SOURCE
from air.worlds.questions.shop import players
from air.worlds.questions.shop.catalogue import Product, goods
from air.worlds.questions.shop.episode import INSTRUCTIONS, ShopEpisode
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


def test_a_turn_with_invalid_actions_costs_a_tenth_and_names_each_of_them() -> None:
    """As in GRL: once a turn, however many actions are invalid, and apart from the shop's own reward."""
    asked = goal(1, 0)
    episode = ShopEpisode(1)
    first = episode.start(0)
    step = episode.act("click[nowhere] || buy || search[lamp] || click[red]")
    refused = [
        f"The page does not offer {text!r}." for text in ("click[nowhere]", "buy", "click[red]")
    ]
    assert step.observation.text.split("\n")[:3] == refused
    assert "Page 1" in step.observation.text
    assert (step.reward, step.done) == (-0.1, False)
    step = episode.act("click[back to search]")
    assert (step.observation.text, step.reward) == (first, 0.0)
    assert episode.act("").reward == -0.1
    step = episode.act(
        f"dance || search[{asked.product.title}] || click[{asked.product.asin}] || click[buy now]"
    )
    assert step.observation.text.startswith("The page does not offer 'dance'.\nThank you")
    assert (step.reward, step.done) == (0.9, True)
    facts = episode.facts()
    assert facts["success"] == 1.0
    assert facts["penalty"] == pytest.approx(-0.3)
    assert facts["action_is_valid"] == 5 / 10


def test_a_search_works_on_every_page_as_in_webshop() -> None:
    """Only the search page lists it among its actions, so the prompt must say so."""
    assert "search[KEYWORDS], which works on every page" in INSTRUCTIONS
    episode, turn = visit()
    turn("search[lamp]")
    results = turn("search[red]")
    product = turn(results.rpartition("Available actions: ")[2].split(", ")[2])
    sub_page = turn("click[description]")
    for shown in (results, product, sub_page):
        assert "search[" not in shown
    assert turn("search[red]") == results
    assert turn("click[back to search] || search[red] || search[lamp] || search[red]") == results
    assert episode.facts()["action_is_valid"] == 1.0
    assert episode.facts()["penalty"] == 0.0


def test_empty_actions_are_ignored_unless_there_are_no_others() -> None:
    episode = ShopEpisode(1)
    episode.start(0)
    step = episode.act("|| search[lamp] ||  || click[next >] ||")
    assert step.observation.text.startswith("Instruction:")
    assert "Page 2" in step.observation.text
    assert step.reward == 0.0
    facts = episode.facts()
    assert (facts["num_actions"], facts["action_is_valid"], facts["penalty"]) == (2, 1.0, 0.0)
    many = "|| " * 20 + "click[< prev]" + "|| " * 20 + "click[back to search]"
    assert "[SEP] Search" in episode.act(many).observation.text
    step = episode.act(" || ||")
    assert step.observation.text.startswith("The page does not offer ''.\nWebShop")
    assert step.reward == -0.1
    facts = episode.facts()
    assert (facts["num_actions"], facts["action_is_valid"]) == (5, 4 / 5)


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


Place = tuple[str, int, str, frozenset[str]]
"""A page of the shop: its kind, the number of the page of results, the open product, and the names of the
options whose chosen value is the requested one."""
SEARCH: Place = ("search", 1, "", frozenset())


class Clicks:
    """The exact reward of random clicks for one goal, worked out from the rules of the pages and of WebShop's
    reward, with no code of either: a distribution over pages, click by click."""

    def __init__(self, asked: Goal) -> None:
        self.asked = asked
        self.listing = index().find("black")

    def moments(self, turns: int) -> tuple[float, float, float]:
        """The mean of the reward, the mean of its square, and the chance of a purchase."""
        chances = {SEARCH: 1.0}
        mean = square = purchase = 0.0
        for _ in range(turns):
            after: defaultdict[Place, float] = defaultdict(float)
            for place, chance in chances.items():
                offered = self.offered(place)
                for click in offered:
                    if click is None:
                        reward = self.reward(place)
                        purchase += chance / len(offered)
                        mean += chance / len(offered) * reward
                        square += chance / len(offered) * reward**2
                    else:
                        after[click] += chance / len(offered)
            chances = dict(after)
        return mean, square, purchase

    def offered(self, place: Place) -> list[Place | None]:
        """The page after each action that a page offers; None for the purchase."""
        kind, number, asin, right = place
        none: frozenset[str] = frozenset()
        if kind == "search":
            return [("results", 1, "", none)]
        if kind == "results":
            back = [("results", number - 1, "", none)] if number > 1 else []
            shown = self.listing[10 * (number - 1) : 10 * number]
            products = [("product", number, asin, none) for asin in shown]
            return [SEARCH, *back, ("results", number + 1, "", none), *products]
        if kind == "sub-page":
            return [SEARCH, ("product", number, asin, right)]
        values = [
            ("product", number, asin, right | {name} if value == wanted else right - {name})
            for name, values in goods()[asin].options.items()
            for wanted in [self.asked.options.get(name)]
            for value in values
        ]
        sub_pages = [("sub-page", number, asin, right)] * 3
        return [SEARCH, ("results", number, "", none), *values, *sub_pages, None]

    def reward(self, place: Place) -> float:
        """WebShop's reward for buying the open product."""
        wanted, bought = self.asked.product, goods()[place[2]]
        kinds = {word for kind in KINDS for word in kind.name.split()}
        first, second = (
            set(re.findall("[a-z0-9]+", product.title.lower())) & kinds
            for product in (wanted, bought)
        )
        common = len(first & second) / len(first)
        same_shelf = (wanted.kind.section, wanted.kind.shelf) == (
            bought.kind.section,
            bought.kind.shelf,
        )
        if common == 0:
            return 0.0
        factor = 0.1 if common < 0.1 else 1.0 if common > 0.2 or same_shelf else 0.5
        wishes = len(self.asked.attributes) + len(self.asked.options) + 1
        held = len(set(self.asked.attributes) & set(bought.attributes)) + len(place[3])
        return factor * (held + (bought.price <= self.asked.price_limit)) / wishes


@pytest.mark.parametrize(("level", "seeds"), [(2, (33, 37, 38)), (3, (2, 46, 54))])
def test_random_clicks_earn_what_chance_gives(level: int, seeds: tuple[int, ...]) -> None:
    """The goals are of kinds that the search for `black` finds. All seeds are fixed, and no two episodes have
    the same clicks."""
    mean = variance = total = 0.0
    purchases = expected = spread = 0.0
    for seed in seeds:
        average, square, share = Clicks(goal(level, seed)).moments(11)
        for number in range(120):
            episode, player = ShopEpisode(level), players.random_clicks(1000 * seed + number)
            step = Step(Observation(episode.start(seed)))
            while not step.done:
                step = episode.act(player(step.observation.text))
            mean, variance = mean + average, variance + square - average**2
            expected, spread = expected + share, spread + share * (1 - share)
            total += step.reward
            purchases += "Thank you" in step.observation.text
    assert mean > 4 * math.sqrt(variance)
    assert abs(total - mean) < 3 * math.sqrt(variance)
    assert abs(purchases - expected) < 3 * math.sqrt(spread)


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
