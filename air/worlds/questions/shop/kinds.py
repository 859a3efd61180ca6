"""The kinds of products in the shop, each with its possible attributes, options and prices."""

from __future__ import annotations

from dataclasses import dataclass

_COLORS = ("beige", "black", "blue", "green", "grey", "orange", "purple", "red", "white", "yellow")
_SIZES = ("x-small", "small", "medium", "large", "x-large")


@dataclass(frozen=True)
class Kind:
    """A kind of product, such as desk lamps."""

    name: str
    """The singular name, such as `desk lamp`. WebShop calls this name the query."""
    section: str
    shelf: str
    attributes: tuple[str, ...]
    options: dict[str, tuple[str, ...]]
    """The possible values of each option, by the option's name, such as `color`. A product of this kind
    offers some of the values. No value belongs to two options. `prices` are the smallest and the largest
    price in whole dollars, from which each product subtracts one cent."""
    prices: tuple[int, int]

    @property
    def categories(self) -> tuple[str, ...]:
        """The kind's path in the shop's hierarchy: section, shelf, and the kind's name in the plural."""
        return (self.section, self.shelf, f"{self.name}s")


def _kind(
    name: str, place: str, attributes: str, prices: tuple[int, int], **options: tuple[str, ...]
) -> Kind:
    section, shelf = place.split("/")
    return Kind(name, section, shelf, tuple(attributes.split(", ")), options, prices)


# fmt: off
KINDS = (
    _kind("desk lamp", "home/lighting", "dimmable, energy saving, touch control, adjustable arm, usb powered, eye caring", (15, 90), color=_COLORS),
    _kind("floor lamp", "home/lighting", "dimmable, energy saving, remote control, wooden base, easy assembly, foot switch", (40, 200), color=_COLORS, height=("130 cm", "150 cm", "170 cm")),
    _kind("throw blanket", "home/bedding", "machine washable, super soft, double sided, anti pilling, light weight, fleece lined", (12, 70), color=_COLORS, size=("50 x 60 inch", "60 x 80 inch", "90 x 90 inch")),
    _kind("pillow cover", "home/bedding", "machine washable, hand painted, hidden zipper, organic cotton, wrinkle free, water resistant", (6, 40), color=_COLORS, size=("16 x 16 inch", "18 x 18 inch", "20 x 20 inch")),
    _kind("coffee table", "home/furniture", "easy assembly, solid wood, scratch resistant, storage shelf, tempered glass, space saving", (60, 400), color=_COLORS),
    _kind("office chair", "home/furniture", "lumbar support, easy assembly, breathable mesh, adjustable height, heavy duty, faux leather", (80, 450), color=_COLORS),
    _kind("running shoe", "fashion/shoes", "memory foam, slip resistant, arch support, breathable mesh, light weight, rubber sole", (30, 160), color=_COLORS, size=("7", "8", "9", "10", "11")),
    _kind("hiking boot", "fashion/shoes", "water resistant, slip resistant, ankle support, steel toe, rubber sole, fleece lined", (50, 220), color=_COLORS, size=("7", "8", "9", "10", "11")),
    _kind("rain jacket", "fashion/clothing", "water resistant, hooded, wind proof, light weight, reflective stripes, quick drying", (25, 180), color=_COLORS, size=_SIZES),
    _kind("polo shirt", "fashion/clothing", "machine washable, moisture wicking, slim fit, long sleeve, organic cotton, wrinkle free", (12, 70), color=_COLORS, size=_SIZES),
    _kind("yoga pant", "fashion/clothing", "high waist, moisture wicking, tummy control, side pockets, quick drying, machine washable", (15, 80), color=_COLORS, size=_SIZES),
    _kind("travel backpack", "fashion/bags", "water resistant, laptop compartment, usb port, anti theft, light weight, padded straps", (25, 150), color=_COLORS, volume=("20 litres", "30 litres", "40 litres")),
    _kind("bluetooth speaker", "electronics/audio", "water resistant, long battery life, stereo sound, hands free, light weight, fast charging", (18, 200), color=_COLORS),
    _kind("wireless headphone", "electronics/audio", "noise cancelling, long battery life, hands free, fast charging, over ear, foldable", (25, 300), color=_COLORS),
    _kind("phone case", "electronics/phones", "shock proof, wireless charging, anti slip, scratch resistant, ring holder, eco friendly", (7, 45), color=_COLORS, model=("model 11", "model 12", "model 13", "model 14")),
    _kind("phone charger", "electronics/phones", "fast charging, travel size, overheat protection, foldable plug, long cable, eco friendly", (8, 50), color=_COLORS, ports=("1 port", "2 ports", "4 ports")),
    _kind("green tea", "food/drinks", "caffeine free, gluten free, certified organic, sugar free, non gmo, fair trade", (5, 40), flavor=("ginger", "jasmine", "lemon", "mint", "plain"), pack=("20 bags", "50 bags", "100 bags")),
    _kind("protein bar", "food/snacks", "gluten free, high protein, low sugar, plant based, soy free, non gmo", (10, 45), flavor=("banana", "caramel", "chocolate", "coconut", "peanut"), pack=("pack of 6", "pack of 12", "pack of 24")),
    _kind("face cream", "beauty/skin", "fragrance free, cruelty free, anti aging, oil free, hyaluronic acid, for sensitive skin", (8, 80), scent=("aloe", "lavender", "rose", "unscented"), amount=("30 ml", "50 ml", "100 ml")),
    _kind("hair brush", "beauty/hair", "anti static, detangling, bamboo handle, heat resistant, travel size, scalp massaging", (5, 35), color=_COLORS),
)
# fmt: on
