"""Shows how to define tools of your own: a decorated function is a tool, the tools of an episode can share a
state, and episodes can borrow an expensive object one after the other.

    python examples/your_own_tools.py

A run file, or a task of rows, names these tools as `your_own_tools.py:convert`,
`your_own_tools.py:NOTEBOOK` and `your_own_tools.py:buy`.
"""

from __future__ import annotations

import asyncio
from typing import Literal

from air.tools import Reply, ResourcePool, ToolContext, ToolError, ToolSet, finish, load, tool

METRES = {"m": 1.0, "km": 1000.0, "mile": 1609.344}


@tool
def convert(value: float, unit: Literal["m", "km", "mile"], to: Literal["m", "km", "mile"]) -> str:
    """Converts a length.

    Args:
        value: the number
        unit: its unit
        to: the unit of the result
    """
    if value < 0:
        raise ToolError("A length is not negative.")
    return f"{value * METRES[unit] / METRES[to]:g} {to}"


class Notebook:
    """The notes that an agent writes in one episode: the state that the tools `note` and `hand_in` share."""

    def __init__(self, context: ToolContext) -> None:
        self.lines: list[str] = []

    def close(self) -> None:
        """Ends the episode's state. Air calls this method at the end of the episode."""
        self.lines.clear()


@tool(state=Notebook, max_length=500)
def note(notebook: Notebook, text: str) -> str:
    """Writes a line into the notebook.

    Args:
        text: the line
    """
    notebook.lines.append(text)
    return f"{len(notebook.lines)} lines"


@tool(state=Notebook)
async def hand_in(notebook: Notebook) -> Reply:
    """Hands the notebook in and ends the episode."""
    return finish("\n".join(notebook.lines), lines=len(notebook.lines))


NOTEBOOK = [note, hand_in]


class Shop:
    """Stands for an object that takes long to make, such as a browser. Episodes borrow it one after the other
    from a pool."""

    def __init__(self) -> None:
        self.prices = {"bread": 3, "milk": 1}
        self.basket: list[str] = []

    def reset(self) -> None:
        """Removes what an episode has left. Air calls this method at the end of each episode."""
        self.basket.clear()

    def close(self) -> None:
        """Ends the object. Air calls this method if a reset failed, and at the end of the program."""


@tool(state=ResourcePool(Shop, size=2))
def buy(shop: Shop, item: Literal["bread", "milk"]) -> str:
    """Puts an item into the basket, and tells the price of the whole basket.

    Args:
        item: the item
    """
    shop.basket.append(item)
    return f"{len(shop.basket)} items: {sum(shop.prices[one] for one in shop.basket)} euros"


async def main() -> None:
    tools = ToolSet([convert, buy, *NOTEBOOK, *load("calculator")])
    print(tools.text)
    for episode in (1, 2):  # the second finds an empty basket
        async with await tools.open(ToolContext(seed=episode)) as opened:
            for item in ("bread", "milk"):
                result = await opened.call("buy", {"item": item})
            print(f"episode {episode}: {result.observation}")
    async with await tools.open(ToolContext(seed=0)) as opened:
        for name, arguments in (
            ("convert", {"value": 26.2, "unit": "mile", "to": "km"}),
            ("convert", {"value": -1, "unit": "m", "to": "km"}),
            ("convert", {"value": 1, "unit": "yard", "to": "km"}),
            ("calculator", {"expression": "26.2 * 1.609344"}),
            ("note", {"text": "A marathon has about 42 km."}),
            ("hand_in", {}),
        ):
            result = await opened.call(name, arguments)
            print(f"{result.status}: {result.observation}")


if __name__ == "__main__":
    asyncio.run(main())
