"""Tools by name: shipped ones, your own from a file or module, and settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from air.errors import ConfigError, MissingError
from air.tools import TOOLS, ToolContext, ToolSet, load

SOURCE = '''
from __future__ import annotations

from pathlib import Path

from pydantic import Field

from air.tools import Tool, ToolSettings, tool


@tool
def double(number: int) -> str:
    """Doubles a number."""
    return str(2 * number)


BOTH = [double, tool(name="same", description="Gives.")(lambda: "x" * 200)]
NONE = 3


class Times(ToolSettings):
    """Multiplication by a fixed number."""

    factor: int = Field(ge=2)
    """The number."""

    def tools(self, folder: Path) -> list[Tool]:
        @tool
        def times(number: int) -> str:
            """Multiplies a number."""
            return f"{folder.name} {number * self.factor}"

        return [times]
'''


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "my_tools.py").write_text(SOURCE, "utf-8")
    (tmp_path / "broken.py").write_text("1 / 0\n", "utf-8")
    return tmp_path


async def result(spec: Any, folder: Path, **arguments: Any) -> str:
    (one,) = load(spec, folder)
    async with await ToolSet([one]).open(ToolContext(seed=0)) as tools:
        return (await tools.call(one.name, arguments)).observation


async def test_a_tool_of_your_own_file(folder: Path) -> None:
    assert await result("my_tools.py:double", folder, number=4) == "8"
    assert await result(f"{folder}/my_tools.py:double", Path("/"), number=4) == "8"
    assert load("my_tools.py:double", folder) == load("my_tools.py:double", folder)


async def test_settings_of_your_own(folder: Path) -> None:
    spec = {"name": "my_tools.py:Times", "factor": 3}
    assert await result(spec, folder, number=4) == f"{folder.name} 12"


async def test_every_tool_has_limits(folder: Path) -> None:
    (one,) = load({"name": "calculator", "max_length": 80, "seconds": 3}, folder)
    assert (one.max_length, one.seconds) == (80, 3)
    assert (
        len(await result({"name": "calculator", "max_length": 80}, folder, expression="2**999"))
        <= 80
    )
    assert [
        one.max_length for one in load({"name": "my_tools.py:BOTH", "max_length": 70}, folder)
    ] == [70] * 2


@pytest.mark.parametrize(
    ("spec", "kind", "part"),
    [
        ("calculater", MissingError, "did you mean `calculator`?"),
        ("zzz", MissingError, "Your own are `file.py:object`"),
        ("my_tools.py:triple", MissingError, "no object `triple`"),
        ("their_tools.py:double", MissingError, "no such file"),
        ("no_module_here:double", MissingError, "cannot be imported"),
        ("broken.py:double", ConfigError, "broken.py: cannot be imported: ZeroDivisionError"),
        ("my_tools.py:NONE", ConfigError, "is no tool, but 3"),
        ({"factor": 3}, ConfigError, "has no name"),
        ({"name": "my_tools.py:Times"}, ConfigError, "`factor`: Field required"),
        ({"name": "my_tools.py:Times", "factor": 1}, ConfigError, "greater than or equal to 2"),
        ({"name": "my_tools.py:Times", "fcator": 1}, ConfigError, "did you mean `factor`?"),
        ({"name": "calculator", "max_length": 3}, ConfigError, "max_length"),
        ({"name": "calculator", "digits": 3}, ConfigError, "there is no key `digits`"),
    ],
)
def test_bad_names_and_settings_are_refused(
    spec: Any, kind: type[Exception], part: str, folder: Path
) -> None:
    with pytest.raises(kind) as raised:
        load(spec, folder)
    assert part in str(raised.value)


def test_settings_are_part_of_the_digest(folder: Path) -> None:
    specs = [{"name": "my_tools.py:Times", "factor": factor} for factor in (2, 3, 3)]
    assert len({ToolSet(load(spec, folder)).digest for spec in specs}) == 2


def test_shipped_tools_have_the_names_under_which_they_are_listed() -> None:
    assert [one.name for one in load("calculator")] == ["calculator"]
    assert "calculator" in TOOLS
