"""What the README shows as Python runs as it stands there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.docker

README = Path(__file__).parents[2] / "README.md"


async def test_boxes_by_themselves(capsys: pytest.CaptureFixture[str]) -> None:
    (snippet,) = re.findall(r"```python\n(.*?)```", README.read_text("utf-8"), re.DOTALL)
    await eval(compile(snippet, "README.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), {})
    assert capsys.readouterr().out == "1\n\nb'print(1)'\n"
