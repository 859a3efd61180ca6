"""The goals of shop episodes (the purchases that the agent is asked to make), and WebShop's reward for a
purchase."""

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
"""The smallest and the largest number of attributes in a goal, by level."""
_PRICES = [10.0 * n for n in range(1, 100)]
_NOUNS = {word for kind in KINDS for word in kind.name.split()}
"""All words in the names of kinds of products. The reward looks for them in the title of a product, to
recognise its kind."""


@dataclass(frozen=True)
class Goal:
    """A goal, that is, the purchase that the agent is asked to make: a kind of product with attributes,
    options (the requested value of each, by the option's name) and a price limit in dollars."""

    product: Product
    """The product from which the goal was generated. Other products may satisfy the goal as well."""
    attributes: tuple[str, ...]
    options: Mapping[str, str]
    price_limit: float

    @property
    def instruction(self) -> str:
        """The request to the agent, as a sentence."""
        parts = [f"I need a {self.product.kind.name} that is: " + " and ".join(self.attributes)]
        if self.options:
            named = (f"{name}: {value}" for name, value in self.options.items())
            parts.append("with " + ", and ".join(named))
        return ", ".join([*parts, f"and price lower than {self.price_limit:.2f} dollars"])


def goal(level: int | None, seed: int) -> Goal:
    """Returns the goal that `seed` determines. At level 1 the goal requests none of the product's options, at
    level 2 one option, and at level 3 all of them. If `level` is None, the level is drawn from the seed. No
    product is the basis of both a training goal and a validation goal."""
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

    The reward is the share of the goal's attributes, options and price limit that the purchase satisfies,
    times a factor from 0 to 1 for the kind of product. Options and attributes must match exactly, because the
    generated products name each property in one way. WebShop compares them by similarity, because its real
    products name the same property in several ways.
    """
    text = " ".join([product.title, *product.features, product.description]).lower()
    attributes = sum(a in product.attributes or a in text for a in goal.attributes)
    chosen = sum(options.get(name) == value for name, value in goal.options.items())
    cheap = product.price <= goal.price_limit
    most = len(goal.attributes) + len(goal.options) + 1
    return (attributes + chosen + cheap) / most * _kind_factor(goal.product, product)


def _kind_factor(wanted: Product, bought: Product) -> float:
    """Returns WebShop's factor, from 0 to 1, for the kind of the bought product.

    Let s be the share of the words of `_NOUNS` in the wanted product's title that the bought product's title
    contains as well (0.2 if there are no such words). The factor is 0 if s = 0, and 0.1 if s < 0.1. Otherwise
    it is 1 if s > 0.2, if the kinds are equal, or if they have at least two categories in common; else 0.5.
    """
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
