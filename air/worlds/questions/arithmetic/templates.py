"""The templates of generated word problems of levels 1 to 4. A problem of level n needs at least n
operations.

A template's text has placeholders in braces: `{name}` and `{other}` are people, `{item}` is a kind of
thing, and the other placeholders are numbers. A number that is in the text but not in the formula is a
distractor.
"""

from __future__ import annotations

from dataclasses import dataclass

# fmt: off
NAMES = [
    "Ada", "Ben", "Carla", "Deniz", "Elif", "Farid", "Grace", "Hana", "Ivan", "Jonas",
    "Kemi", "Lena", "Mateo", "Nadia", "Omar", "Priya", "Quinn", "Rosa", "Samir", "Tara",
]
ITEMS = [
    "apples", "books", "candles", "coins", "cookies", "cups", "eggs",
    "flowers", "marbles", "pencils", "shells", "stamps", "stickers", "tiles",
]


@dataclass(frozen=True)
class Template:
    """The template of a word problem: a text with placeholders in braces, and the formula of the problem's
    answer."""

    text: str
    formula: str
    """The formula of the answer over the placeholders of numbers, such as `a*b-c`. Numbers are redrawn
    until the result of each operation is a positive integer."""
    ranges: dict[str, tuple[int, int]]
    """The smallest and the largest value of each number, by placeholder."""


def _template(text: str, formula: str, **ranges: tuple[int, int]) -> Template:
    return Template(text, formula, ranges)


_SMALL, _TENS, _HUNDREDS = (2, 12), (10, 60), (50, 400)
_ONE = (
    _template("{name} has {a} {item} and finds {b} more. How many {item} does {name} have now?", "a+b", a=_SMALL, b=_SMALL),
    _template("{name} has {a} {item} and gives {b} to {other}. How many {item} does {name} have left?", "a-b", a=(5, 20), b=(1, 12)),
    _template("There are {a} boxes with {b} {item} in each. How many {item} are there in all?", "a*b", a=_SMALL, b=_SMALL),
    _template("{name} shares {a} {item} equally among {b} friends. How many {item} does each friend get?", "a/b", a=(6, 96), b=(2, 9)),
    _template("{name} read {a} pages on Monday and {b} pages on Tuesday. How many pages is that together?", "a+b", a=_TENS, b=_TENS),
    _template("A ticket costs {a} dollars. How many dollars do {b} tickets cost?", "a*b", a=_SMALL, b=_SMALL),
    _template("{name} is {a} years old and {other} is {b} years older. How old is {other}?", "a+b", a=(4, 40), b=_SMALL),
    _template("A rope is {a} metres long. {name} cuts off {b} metres. How many metres are left?", "a-b", a=_TENS, b=(2, 40)),
    _template("{name} packs {a} {item} into bags of {b}. How many bags are filled?", "a/b", a=(10, 120), b=(2, 12)),
    _template("{name} has {a} {item}. {other} has {b} fewer. How many {item} does {other} have?", "a-b", a=(10, 40), b=_SMALL),
)
_TWO = (
    _template("{name} buys {a} packs of {b} {item} and loses {c} of them. How many {item} are left?", "a*b-c", a=_SMALL, b=_SMALL, c=_SMALL),
    _template("{name} has {a} {item}, and {other} has {b} times as many. How many {item} do they have together?", "a+a*b", a=(3, 20), b=(2, 6)),
    _template("{name} earns {a} dollars an hour. After {b} hours of work, {name} spends {c} dollars. How many dollars are left?", "a*b-c", a=(8, 25), b=(2, 9), c=(5, 60)),
    _template("{name} picks {a} {item} and {other} picks {b}. They put them equally into {c} baskets. How many are in each basket?", "(a+b)/c", a=_TENS, b=_TENS, c=(2, 9)),
    _template("A class has {a} girls and {b} boys. {c} of the children are ill today. How many children are in class?", "a+b-c", a=(8, 18), b=(8, 18), c=(1, 9)),
    _template("{name} bakes {a} trays of {b} cookies and shares all of them equally among {c} neighbours. How many cookies does each get?", "a*b/c", a=(2, 9), b=(4, 16), c=(2, 8)),
    _template("A book has {a} pages. {name} has read {b} pages and reads {c} pages a day from now on. How many more days does the book take?", "(a-b)/c", a=(60, 300), b=(10, 100), c=(5, 25)),
    _template("{name} saves {a} dollars a week for {b} weeks and gets {c} dollars as a present. How many dollars does {name} have?", "a*b+c", a=(3, 20), b=(3, 12), c=(5, 50)),
    _template("A train has {a} cars with {b} seats each. {c} seats are taken. How many seats are free?", "a*b-c", a=(3, 12), b=(20, 60), c=(10, 150)),
    _template("{p}% of the {a} {item} in a shop are red. How many {item} are red?", "a*p/100", a=(20, 400), p=(5, 95)),
)
_THREE = (
    _template("{name} buys {a} {item} at {b} dollars each and {c} {item} at {d} dollars each. How many dollars does {name} spend?", "a*b+c*d", a=_SMALL, b=(2, 9), c=_SMALL, d=(2, 9)),
    _template("A farm has {a} cows and {b} times as many sheep. {c} animals are sold. How many animals are left?", "a+a*b-c", a=(5, 30), b=(2, 6), c=(3, 30)),
    _template("{name} pays with {a} bills of {b} dollars for {c} cups at {d} dollars each. How many dollars of change does {name} get?", "a*b-c*d", a=(2, 8), b=(5, 20), c=(2, 9), d=(2, 9)),
    _template("A coat costs {a} dollars. It is reduced by {p}%. How many dollars do {b} coats cost at the reduced price?", "(a-a*p/100)*b", a=(20, 200), b=(1, 5), p=(5, 60)),
    _template("{name} runs {a} km a day for {b} days, and {other} runs {c} km a day for {d} days. How many km more does {name} run?", "a*b-c*d", a=(5, 15), b=(5, 14), c=(2, 9), d=(2, 9)),
    _template("{name} has {a} {item}. {other} has {b} fewer than that, and together they buy {c} more. How many {item} do they have together?", "a+(a-b)+c", a=(12, 60), b=(2, 30), c=_SMALL),
    _template("There are {a} shelves with {b} books each and {c} shelves with {d} books each. How many books are there?", "a*b+c*d", a=_SMALL, b=(10, 40), c=_SMALL, d=(10, 40)),
    _template("{name} has {a} dollars and buys {b} {item} at {c} dollars each. The rest is shared equally among {d} children. How many dollars does each child get?", "(a-b*c)/d", a=_HUNDREDS, b=_SMALL, c=(2, 9), d=(2, 9)),
    _template("Half of the {a} guests at a party leave, and then {b} cars with {c} guests each arrive. How many guests are there then?", "a/2+b*c", a=(10, 120), b=_SMALL, c=(2, 5)),
    _template("{name} fills {a} jars with {b} {item} each and {c} jars with half as many {item} each. How many {item} is that?", "a*b+c*(b/2)", a=_SMALL, b=(4, 30), c=_SMALL),
)
_FOUR = (
    _template("{name}, who is {x} years old, sells {a} cakes at {b} dollars and {c} pies at {d} dollars. The flour cost {e} dollars. How many dollars does {name} gain?", "a*b+c*d-e", a=_SMALL, b=(4, 15), c=_SMALL, d=(3, 12), e=(5, 60), x=(12, 70)),
    _template("A school with {x} rooms orders {a} boxes of {b} pencils and {c} boxes of {d} pencils. They are shared equally among {e} classes. How many pencils does each class get?", "(a*b+c*d)/e", a=_SMALL, b=_SMALL, c=_SMALL, d=_SMALL, e=(2, 8), x=(10, 50)),
    _template("{name} earns {a} dollars an hour for the first {b} hours and {c} dollars more for each of the {d} hours after that. How many dollars does {name} earn?", "a*b+(a+c)*d", a=(8, 30), b=(4, 40), c=(2, 12), d=(2, 10)),
    _template("In a park there are {a} oaks and {b} times as many pines. {p}% of all these trees are cut, and {c} birches are planted. How many birches and remaining trees are there?", "(a+a*b)-(a+a*b)*p/100+c", a=(10, 60), b=(2, 5), c=(3, 40), p=(5, 60)),
    _template("{name} drives {a} km an hour for {b} hours and {c} km an hour for {d} hours, with a break of {x} minutes. The car needs one litre for {e} km. How many litres does it need?", "(a*b+c*d)/e", a=(30, 90), b=(2, 6), c=(20, 60), d=(2, 6), e=(5, 20), x=(10, 50)),
    _template("{name} has {a} {item}. {other} has {b} times as many minus {c}. They give {d} {item} each to {e} children. How many {item} do they have left together?", "a+(a*b-c)-d*e", a=(20, 80), b=(2, 5), c=(2, 20), d=(2, 6), e=(2, 9)),
    _template("A hall has {a} rows of {b} seats downstairs and {c} rows of {d} seats upstairs. {e} people come, among them {x} children. How many seats stay empty?", "a*b+c*d-e", a=(5, 20), b=(8, 20), c=(3, 12), d=(8, 20), e=(20, 200), x=(2, 15)),
    _template("{name} buys {a} shirts at {b} dollars and gets {p}% off the whole price. {name} then pays {c} dollars for delivery. How many dollars is that?", "a*b-a*b*p/100+c", a=(2, 9), b=(10, 50), c=(3, 15), p=(5, 60)),
)
# fmt: on
TEMPLATES: dict[int, tuple[Template, ...]] = {1: _ONE, 2: _TWO, 3: _THREE, 4: _FOUR}
"""The templates of each level. Level 5 has none: `stories.py` generates its problems."""
