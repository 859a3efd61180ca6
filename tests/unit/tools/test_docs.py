"""The tools in `docs/tools.md` work as written, and the page lists every shipped tool."""

from __future__ import annotations

import re
from pathlib import Path

from air.tools import TOOLS, ToolContext, ToolSet, load

PAGE = (Path(__file__).parents[3] / "docs" / "tools.md").read_text("utf-8")
TOOL, POOL = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


async def test_the_tool_of_the_page(tmp_path: Path) -> None:
    (tmp_path / "my_tools.py").write_text(TOOL, "utf-8")
    async with await ToolSet(load("my_tools.py:convert", tmp_path)).open(
        ToolContext(seed=0)
    ) as tools:
        result = await tools.call("convert", {"value": 3, "unit": "km"})
        assert (result.status, result.observation) == ("success", "3000 m")
        result = await tools.call("convert", {"value": -3, "unit": "km"})
        assert (result.status, result.observation) == ("error", "A length is not negative.")


async def test_the_pool_of_the_page(tmp_path: Path) -> None:
    """Each episode begins without notes, in the same database."""
    (tmp_path / "my_tools.py").write_text(POOL, "utf-8")
    tools = ToolSet(load("my_tools.py:note", tmp_path))
    databases: set[int] = set()
    for _ in range(3):
        async with await tools.open(ToolContext(seed=0)) as opened:
            for number in ("1", "2"):
                assert (await opened.call("note", {"text": "a"})).observation == number
            databases |= {id(state.database) for state in opened.states.values()}
    assert len(databases) == 1


def test_the_page_lists_every_shipped_tool() -> None:
    assert [name for name in TOOLS if f"`{name}`" not in PAGE] == []
