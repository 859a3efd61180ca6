"""What the agent is asked to buy, and the reward of a purchase by WebShop's formula."""

from __future__ import annotations

import functools
import random
from collections.abc import Mapping
from dataclasses import dataclass

from air.worlds.questions.episodes import belongs, for_validation
from air.worlds.questions.shop.catalogue import Product, goods
from air.worlds.questions.shop.kinds import KINDS
from air.worlds.sources import VALIDATION_SEED

LEVELS = (1, 2, 3)
_ATTRIBUTES = {1: (1, 1), 2: (1, 2), 3: (2, 3)}
"""The least and the greatest number of attributes that a goal asks for, by level."""
_PRICES = [10.0 * n for n in range(1, 100)]
_NOUNS = {word for kind in KINDS for word in kind.name.split()}
"""The words that say what kind of thing a title names."""


@dataclass(frozen=True)
class Goal:
    """What the agent is asked to buy."""

    product: Product
    """The product that the goal was made from. Others may satisfy it as well."""
    attributes: tuple[str, ...]
    options: Mapping[str, str]
    price_limit: float

    @property
    def instruction(self) -> str:
        """The request in words."""
        parts = [f"I need a {self.product.kind.name} that is: " + " and ".join(self.attributes)]
        if self.options:
            named = (f"{name}: {value}" for name, value in self.options.items())
            parts.append("with " + ", and ".join(named))
        return ", ".join([*parts, f"and price lower than {self.price_limit:.2f} dollars"])


def goal(level: int | None, seed: int) -> Goal:
    """Returns the goal of a seed. Without a level it has any. Level 1 asks for no options, level 2 for one,
    level 3 for all. Goods that validation asks for are never asked for in training."""
    draw = random.Random(f"shop {level} {seed}")
    chosen = level or draw.choice(LEVELS)
    product = draw.choice(_askable(for_validation(seed)))
    names = list(product.options)
    wanted = names[: {1: 0, 2: 1, 3: len(names)}[chosen]]
    above = [price for price in _PRICES if price > product.price][:4]
    return Goal(
        product=product,
        attributes=tuple(draw.sample(product.attributes, draw.randint(*_ATTRIBUTES[chosen]))),
        options={name: draw.choice(product.options[name]) for name in wanted},
        price_limit=max(draw.sample(above, 2)),
    )


@functools.cache
def _askable(validation: bool) -> list[Product]:
    seed = VALIDATION_SEED if validation else 0
    return [product for product in goods().values() if belongs(product.asin, seed)]


def reward(goal: Goal, product: Product, options: Mapping[str, str]) -> float:
    """Returns the reward, from 0 to 1, for buying `product` with the chosen `options`.

    It is the share of the attributes, options and the price limit that the purchase satisfies, times a factor
    for its kind. Attributes and options must agree exactly: WebShop compares them by similarity, because its
    real goods name the same thing in many ways; ours do not.
    """
    text = " ".join([product.title, *product.features, product.description]).lower()
    attributes = sum(a in product.attributes or a in text for a in goal.attributes)
    chosen = sum(options.get(name) == value for name, value in goal.options.items())
    cheap = product.price <= goal.price_limit
    most = len(goal.attributes) + len(goal.options) + 1
    return (attributes + chosen + cheap) / most * _kind_factor(goal.product, product)


def _kind_factor(wanted: Product, bought: Product) -> float:
    """WebShop's factor: 1 for the right kind of thing, less for another."""
    nouns = _nouns(wanted)
    score = len(nouns & _nouns(bought)) / len(nouns) if nouns else 0.2
    same_kind = wanted.kind.name == bought.kind.name
    same_place = len(set(wanted.kind.categories) & set(bought.kind.categories)) >= 2
    if score == 0:
        return 0.0
    if score < 0.1:
        return 0.1
    return 1.0 if same_kind or same_place or score > 0.2 else 0.5


def _nouns(product: Product) -> set[str]:
    return set(product.title.lower().replace(",", "").split()) & _NOUNS
