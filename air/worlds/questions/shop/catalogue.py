"""The shop's catalogue: 800 generated products, which are the same for every seed."""

from __future__ import annotations

import functools
import random
from collections.abc import Mapping
from dataclasses import dataclass

from air.worlds.questions.shop.kinds import KINDS, Kind

_GOODS_OF_A_KIND = 40
_BRANDS = (
    "Alvero",
    "Brisk",
    "Corvane",
    "Dunmore",
    "Elmtree",
    "Fenwick",
    "Galdor",
    "Hexley",
    "Ilmari",
    "Jorvik",
)
_DIGITS = "0123456789ABCDEFGHIJKLMNPQRSTUVWXYZ"


@dataclass(frozen=True)
class Product:
    """A product of the shop. Its price is in dollars. `options` maps the name of each option, such as
    `color`, to the values that the buyer can choose."""

    asin: str
    """The product number, such as `B0A1B2C000`, with which the agent opens the product's page."""
    kind: Kind
    title: str
    price: float
    attributes: tuple[str, ...]
    options: Mapping[str, tuple[str, ...]]
    features: tuple[str, ...]
    description: str

    @property
    def text(self) -> str:
        """The text that the search engine indexes: title, categories, features, description and option
        values."""
        values = [value for values in self.options.values() for value in values]
        return " ".join(
            [self.title, *self.kind.categories, *self.features, self.description, *values]
        )


@functools.cache
def goods() -> dict[str, Product]:
    """Returns all products of the shop, by product number."""
    draw = random.Random("the goods of the shop")
    found: dict[str, Product] = {}
    for kind in KINDS:
        for _ in range(_GOODS_OF_A_KIND):
            product = _product(kind, len(found), draw)
            found[product.asin] = product
    return found


def _product(kind: Kind, index: int, draw: random.Random) -> Product:
    asin = "B0" + "".join(draw.choices(_DIGITS, k=5)) + f"{index:03d}"
    attributes = tuple(draw.sample(kind.attributes, draw.randint(3, 4)))
    brand, model = draw.choice(_BRANDS), f"{draw.choice('KLMPQRT')}{index + 100}"
    title = (
        f"{brand} {attributes[0].title()} {kind.name.title()} with {attributes[1].title()}, {model}"
    )
    options = {}
    for name, values in kind.options.items():
        chosen = draw.sample(values, max(2, len(values) * 2 // 3))
        options[name] = tuple(value for value in values if value in chosen)
    return Product(
        asin=asin,
        kind=kind,
        title=title,
        price=draw.randint(*kind.prices) - 0.01,
        attributes=attributes,
        options=options,
        features=tuple(f"This {kind.name} is made by {brand}: {a}." for a in attributes),
        description=f"The {brand} {model} is a {kind.name} for every day.",
    )
