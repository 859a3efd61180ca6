"""The generated databases: five schemas of three tables, filled with random rows.

All schemas have the same structure, so that every question template fits every schema: a parent table, a
child table whose rows refer to a parent, and an event table whose rows refer to a child.
"""

from __future__ import annotations

import random
import sqlite3
from dataclasses import dataclass

_FIRST = [
    "Amir",
    "Bea",
    "Chen",
    "Dana",
    "Emil",
    "Fatou",
    "Goran",
    "Hilde",
    "Ines",
    "Juan",
    "Keiko",
    "Lars",
]
_LAST = [
    "Abbott",
    "Brandt",
    "Costa",
    "Duval",
    "Eriksen",
    "Fischer",
    "Greco",
    "Haddad",
    "Ito",
    "Jensen",
]
_FRONT = [
    "Silent",
    "Golden",
    "Broken",
    "Northern",
    "Hidden",
    "Early",
    "Paper",
    "Winter",
    "Second",
    "Open",
]
_BACK = [
    "River",
    "Garden",
    "Mirror",
    "Harbour",
    "Signal",
    "Letter",
    "Mountain",
    "Kitchen",
    "Bridge",
    "Field",
]


@dataclass(frozen=True)
class Table:
    """A table with four columns besides foreign keys: an id, a label (unique within the table), a category
    and a number. `label`, `category` and `number` are the names of these columns, `categories` are the
    possible categories, and the numbers are from `least` to `greatest`."""

    name: str
    one: str
    """The singular noun for a row, used in questions."""
    label: str
    category: str
    categories: tuple[str, ...]
    number: str
    least: int
    greatest: int
    people: bool = False
    """Whether the label column (`label`) holds names of people."""

    def __str__(self) -> str:
        return self.name

    @property
    def many(self) -> str:
        """The plural noun for the table's rows, used in questions: the table's name with spaces for
        underscores."""
        return self.name.replace("_", " ")


@dataclass(frozen=True)
class Schema:
    """The three tables of a generated database. Rows of `child` refer to rows of `parent`, and rows of
    `event` to rows of `child`."""

    parent: Table
    child: Table
    event: Table

    @property
    def parent_key(self) -> str:
        """The name of the child table's foreign key to the parent table."""
        return f"{self.parent.one}_id"

    @property
    def child_key(self) -> str:
        """The name of the event table's foreign key to the child table."""
        return f"{self.child.one}_id"

    @property
    def statements(self) -> list[str]:
        """The `CREATE TABLE` statements of the three tables."""
        return [
            _create(self.parent, ""),
            _create(self.child, f"{self.parent_key} INTEGER REFERENCES {self.parent.name}(id)"),
            _create(self.event, f"{self.child_key} INTEGER REFERENCES {self.child.name}(id)"),
        ]


def _create(table: Table, reference: str) -> str:
    columns = [
        "id INTEGER PRIMARY KEY",
        f"{table.label} TEXT",
        *([reference] if reference else []),
        f"{table.category} TEXT",
        f"{table.number} INTEGER",
    ]
    return f"CREATE TABLE {table.name} (\n  " + ",\n  ".join(columns) + "\n);"


SCHEMAS = (
    Schema(
        Table("authors", "author", "name", "country", ("Chile", "Ghana", "Japan", "Norway"), "birth_year", 1920, 1995, True),
        Table("books", "book", "title", "genre", ("crime", "fantasy", "history", "poetry"), "pages", 80, 700),
        Table("loans", "loan", "reader", "branch", ("airport", "centre", "harbour"), "days", 1, 60, True),
    ),
    Schema(
        Table("teachers", "teacher", "name", "building", ("east", "main", "west"), "salary", 2000, 6000, True),
        Table("courses", "course", "title", "department", ("art", "biology", "law", "physics"), "credits", 1, 12),
        Table("enrolments", "enrolment", "student", "term", ("autumn", "spring", "summer"), "points", 0, 100, True),
    ),
    Schema(
        Table("suppliers", "supplier", "company", "region", ("Africa", "Asia", "Europe"), "founded", 1900, 2020),
        Table("products", "product", "title", "category", ("garden", "kitchen", "office", "sport"), "price", 3, 400),
        Table("orders", "order", "customer", "channel", ("phone", "shop", "web"), "quantity", 1, 30, True),
    ),
    Schema(
        Table("airlines", "airline", "company", "country", ("Brazil", "India", "Kenya", "Spain"), "fleet", 3, 200),
        Table("flights", "flight", "route", "aircraft", ("A320", "B737", "E190"), "distance", 200, 9000),
        Table("bookings", "booking", "passenger", "class", ("business", "economy", "first"), "seats", 1, 8, True),
    ),
    Schema(
        Table("wards", "ward", "title", "floor", ("first", "ground", "second"), "beds", 4, 40),
        Table("patients", "patient", "name", "blood_type", ("A", "AB", "B", "O"), "age", 1, 99, True),
        Table("treatments", "treatment", "nurse", "kind", ("scan", "surgery", "therapy"), "cost", 20, 2000, True),
    ),
)  # fmt: skip


def build(schema: Schema, draw: random.Random) -> sqlite3.Connection:
    """Returns a connection to a new SQLite database in memory. It has the three tables of `schema`, filled
    with rows that the generator `draw` determines."""
    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    connection.executescript("\n".join(schema.statements))
    parents, children, events = draw.randint(8, 12), draw.randint(24, 40), draw.randint(50, 80)
    _fill(connection, schema.parent, parents, 0, draw)
    _fill(connection, schema.child, children, parents, draw)
    _fill(connection, schema.event, events, children, draw)
    return connection


def _fill(
    connection: sqlite3.Connection, table: Table, count: int, owners: int, draw: random.Random
) -> None:
    """Inserts `count` rows into `table`, which the generator `draw` determines. If the table has a foreign
    key, `owners` is the number of rows of the table to which the key refers, and the new rows refer only to a
    random three quarters of those rows. Otherwise `owners` is 0."""
    front, back = (_FIRST, _LAST) if table.people else (_FRONT, _BACK)
    labels = [f"{a} {b}" for a in front for b in back]
    draw.shuffle(labels)
    owning = draw.sample(range(1, owners + 1), owners * 3 // 4)
    rows = []
    for index in range(count):
        number = draw.randint(table.least, table.greatest)
        owner = [draw.choice(owning)] if owning else []
        rows.append((index + 1, labels[index], *owner, draw.choice(table.categories), number))
    marks = ", ".join("?" * len(rows[0]))
    connection.executemany(f"INSERT INTO {table.name} VALUES ({marks})", rows)
