"""What a harness's program asks for, and what the image of harnesses holds."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import pytest
from verifiers.v1.harnesses import bash
from verifiers.v1.harnesses.mini_swe_agent import MiniSWEAgentHarnessConfig, harness

from air import paths
from air.env.program.interpreters import interpreter, requirements
from air.errors import MissingError
from air.sandbox import open_box
from air.sandbox.contract.box import BoxSpec


def listed(name: str) -> set[str]:
    lines = (paths.shipped("images") / "harness" / f"{name}.txt").read_text().split("\n")
    return {line for line in lines if line}


def test_the_image_holds_what_the_programs_of_verifiers_ask_for() -> None:
    if version("verifiers").startswith("0.3."):  # whose mini_swe_agent pins another litellm
        program = (Path(bash.__file__).parent / "program.py").read_text()
        assert listed("bash-0.3") == {*requirements(program), "packaging"}
        return
    launch = import_module("verifiers.v1.harnesses.utils.launch")
    assert listed("bash") == {*requirements(launch.CHAT_PROGRAM_SOURCE), "packaging"}
    mini = harness.PROGRAM_SOURCE.replace("{version}", MiniSWEAgentHarnessConfig().version)
    assert listed("mini_swe_agent") == {*requirements(mini), "packaging"}


@pytest.mark.parametrize(
    ("script", "wanted"),
    [
        ("print()", []),
        ("# /// script\n# dependencies = []\n# ///\n", []),
        (
            "# /// script\n#\n# dependencies = [\n#   'a>1',\n#   'b[c]==2',\n# ]\n# ///\nx\n",
            ["a>1", "b[c]==2"],
        ),
    ],
)
def test_the_header_of_a_program_is_read(script: str, wanted: list[str]) -> None:
    assert requirements(script) == wanted


async def test_an_interpreter_is_found_by_what_it_has() -> None:
    async with await open_box(BoxSpec(provider="process"), run="programs") as box:
        python = await interpreter(box, ["pydantic>=2", "httpx"])
        assert Path(python).name.startswith("python")
        with pytest.raises(MissingError, match=r"pydantic<2 \(it has 2.*no-such-package") as error:
            await interpreter(box, ["pydantic<2", "no-such-package"])
    assert "\n" not in str(error.value)
