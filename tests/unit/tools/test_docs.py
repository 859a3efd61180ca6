"""The tool in `docs/tools.md` works as written, and the page lists every shipped tool."""

from __future__ import annotations

import re
from pathlib import Path

from air.tools import TOOLS, ToolContext, ToolSet, load

PAGE = (Path(__file__).parents[3] / "docs" / "tools.md").read_text("utf-8")


async def test_the_tool_of_the_page(tmp_path: Path) -> None:
    (source,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "my_tools.py").write_text(source, "utf-8")
    async with await ToolSet(load("my_tools.py:convert", tmp_path)).open(
        ToolContext(seed=0)
    ) as tools:
        result = await tools.call("convert", {"value": 3, "unit": "km"})
        assert (result.status, result.observation) == ("success", "3000 m")
        result = await tools.call("convert", {"value": -3, "unit": "km"})
        assert (result.status, result.observation) == ("error", "A length is not negative.")


def test_the_page_lists_every_shipped_tool() -> None:
    assert [name for name in TOOLS if f"`{name}`" not in PAGE] == []
