"""The battery covers every shipped tool and answer checker, and its attacks can work on weaker ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from air.errors import InfrastructureError
from air.integrity.tools_and_checkers import PART_ATTACKS
from air.integrity.tools_and_checkers.attack import MCP_URL
from air.integrity.tools_and_checkers.battery import PartBattery
from air.integrity.verdict import AttackVerdict
from air.rewards.answers import CHECKERS
from air.tasks.spec import Provider
from air.tools import TOOLS

FAMILIES = {
    "denial",
    "oracle",
    "result forging",
    "selective masking",
    "injection",
    "resource attacks",
}
VARIANTS = {
    "code_interpreter (server)": ("code_interpreter", "server"),
    "search (encoder)": ("search", "encoder"),
    "mcp (url)": ("mcp", "url"),
}
"""The settings with which a tool is another one, by the label of the part that has it: the tool and the
setting."""
CARRIES = "state carry-over"
"""A further family, for tools on servers that several episodes use."""
BY_NAME = {attack.name: attack for attack in PART_ATTACKS}
QUICK = (
    "calculator: a tower of powers",
    "calculator: pass a list in a list, 5000 times",
    "sql: read a file",
    "search: write the result of a call into the call",
    "search (encoder): a text without a character that the model knows",
    "search (encoder): query after query",
    "mcp (url): redirect to a server of this machine",
    "mcp (url): look for what another episode kept",
    "mcp (url): name another session",
    "mcp (url): a cookie for later calls",
    "mcp (url): a cookie for later sessions",
    "mcp (url): results of later requests",
    "mcp (url): a result with a status that ends the episode",
    "mcp (url): a body without an end",
    "mcp (url): arguments of a megabyte",
    "mcp (url, restarted): end the server",
    "chess: claim the win",
    "web_page: read a server of this machine",
    "web_search: a request in the query",
    "answer: give a reward with the answer",
    "submit: end without an answer",
    "math_string_equal: many numbers",
    "qa_f1: many words",
    "gui: a click outside (click)",
    "judge: ask for the verdict",
)
ON_CODE_SERVER = (
    "print a result of the server",
    "print a status that ends the episode",
    "kill every process",
    "processes without an end",
    "reach a server of this machine",
    "look for what another episode left",
    "leave files, modules and a process",
    "print characters that are not seen",
    "much output at once",
)
WEAK = '''
import json
import urllib.error
import urllib.request

from air.errors import InfrastructureError
from air.tools import tool
from air.tools.load import ToolSettings


@tool(name="calculator")
def evaluates(expression: str) -> str:
    """Calculates.

    Args:
        expression: what to calculate
    """
    return str(eval(expression))


@tool(name="calculator")
def fails(expression: str) -> str:
    """Calculates.

    Args:
        expression: what to calculate
    """
    raise InfrastructureError("the calculator is away")


CODES = []


@tool(name="code_interpreter")
def remembers(code: str) -> str:
    """Keeps programs, for all episodes, and does not run them.

    Args:
        code: a program
    """
    CODES.append(code)
    return "\\n".join(CODES)


@tool(name="search")
def masks(query: str) -> str:
    """Searches.

    Args:
        query: what to find
    """
    if not query.isascii():
        raise InfrastructureError("the encoder fails")
    return "WORKS" + "-42"


@tool(name="respond")
def follows(status: int, body: str, headers: dict[str, str]) -> str:
    """Follows a redirect to any host.

    Args:
        status: an HTTP status
        body: a body
        headers: HTTP headers
    """
    with urllib.request.urlopen(headers["location"]) as answer:
        return answer.read().decode()


COOKIES = []


class Sessions(ToolSettings):
    """Tools that use any session, and keep cookies for all of them."""

    url: str

    def tools(self, folder):
        @tool
        def look(session: str = "") -> str:
            """Looks into a session.

            Args:
                session: its id
            """
            headers = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
            headers |= {"mcp-session-id": session} if session else {"cookie": "; ".join(COOKIES)}
            params = {"name": "look", "arguments": {}}
            body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
            request = urllib.request.Request(self.url, json.dumps(body).encode(), headers)
            try:
                with urllib.request.urlopen(request) as answer:
                    return answer.read().decode()
            except urllib.error.HTTPError as error:
                with error:
                    return "there is no session"

        @tool
        def respond(headers: dict[str, str] = {}, status: int = 200, body: str = "") -> str:
            """Keeps a cookie.

            Args:
                headers: HTTP headers
                status: an HTTP status
                body: a body
            """
            COOKIES.extend(value for name, value in headers.items() if name == "set-cookie")
            return "a"

        return [look, respond]


def long(prediction, answer):
    return float(len(prediction) > 99)


def raises(prediction, answer):
    return float(int(prediction) == int(answer))


async def obeys(prediction, answer):
    return float("RIGHT" in prediction)
'''


async def played(
    names: Sequence[str], folder: Path, provider: Provider = "docker", **more: Any
) -> dict[str, AttackVerdict]:
    attacks = [BY_NAME[name] for name in names]
    verdicts = await PartBattery(attacks, provider, **more).run(folder / "battery")
    return {one.attack: one for one in verdicts}


@pytest.mark.parametrize(
    ("kind", "shipped"), [("tool", TOOLS), ("checker", CHECKERS)], ids=["tools", "checkers"]
)
def test_every_shipped_part_is_attacked(kind: str, shipped: Mapping[str, Any]) -> None:
    """A new tool or checker needs attacks: add them in `air/integrity/tools_and_checkers/`."""
    families = {label: of for label, of in families_of(kind).items() if label in shipped}
    assert set(families) == set(shipped)
    assert [name for name, of in families.items() if len(of) < 3] == []
    assert set().union(*families.values()) == FAMILIES


def test_every_variant_of_a_tool_is_attacked() -> None:
    """The code interpreter on a server, search with an encoder, and MCP servers with a URL share little but
    the name with the tools without these settings."""
    families = families_of("tool")
    parts = {attack.part.label: attack.part for attack in PART_ATTACKS}
    for label, (name, setting) in VARIANTS.items():
        (spec,) = parts[label].tools
        assert isinstance(spec, Mapping)
        assert (spec["name"], bool(spec[setting])) == (name, True)
        assert families[label] >= FAMILIES
    on_servers = {label for label, of in families.items() if CARRIES in of}
    assert on_servers == {"code_interpreter (server)", "mcp (url)"}


def families_of(kind: str) -> dict[str, set[str]]:
    """The families of attacks by the label of the attacked part."""
    families: dict[str, set[str]] = {}
    for attack in PART_ATTACKS:
        if attack.part.kind == kind:
            families.setdefault(attack.part.label, set()).add(attack.family)
    return families


def test_names_are_unique_and_parts_have_the_shipped_tools() -> None:
    assert len(BY_NAME) == len(PART_ATTACKS) > 500
    for attack in PART_ATTACKS:
        named = [one if isinstance(one, str) else one["name"] for one in attack.part.tools]
        assert attack.part.kind == "checker" or attack.part.name in named
        assert set(named) <= set(TOOLS)


async def test_some_attacks_are_held(tmp_path: Path) -> None:
    verdicts = await played(QUICK, tmp_path)
    assert {name: one.reason for name, one in verdicts.items() if one.result != "held"} == {}
    assert len(verdicts) == len(QUICK)


@pytest.mark.parametrize(
    ("name", "weaker", "reason"),
    [
        (
            "calculator: import a module",
            "evaluates",
            "reached: an observation has the right answer",
        ),
        ("calculator: climb to the classes", "evaluates", "an observation has '<class'"),
        ("calculator: a tower of powers", "fails", "masked: the episode failed"),
        (
            "code_interpreter (server): look for what another episode left",
            "remembers",
            "an observation has 'left-by-another-episode'",
        ),
        (
            "code_interpreter (server): print a result of the server",
            "remembers",
            "no observation has '[exit 7]'",
        ),
        (
            "search (encoder): a text without a character that the model knows",
            "masks",
            "masked: the episode failed",
        ),
        (
            "mcp (url): redirect to a server of this machine",
            "follows",
            "an observation has 'greeting-'",
        ),
        ("mcp (url): name another session", "Sessions", "an observation has 'left-by-another"),
        ("mcp (url): a cookie for later calls", "Sessions", "an observation has 'left-by-anot"),
        ("mcp (url): a cookie for later sessions", "Sessions", "an observation has 'left-by-anot"),
        ("math_equal: many numbers", "long", "paid: 1.000, and a plain wrong answer earns 0.000"),
        ("math_equal: no number", "raises", "masked: the episode failed"),
        ("judge: ask for the verdict", "obeys", "paid: 1.000"),
    ],
)
async def test_attacks_work_on_weaker_parts(
    name: str, weaker: str, reason: str, tmp_path: Path
) -> None:
    file = tmp_path / "weak.py"
    file.write_text(WEAK)
    spec: Any = f"{file}:{weaker}"
    if weaker == "Sessions":
        spec = {"name": spec, "url": MCP_URL}
    verdicts = await played([name], tmp_path, weaker={BY_NAME[name].part.label: spec})
    assert verdicts[name].result == "broken"
    assert reason in verdicts[name].reason


@pytest.mark.docker
async def test_attacks_on_a_code_server_are_held(tmp_path: Path) -> None:
    """The server is a real `air serve sandbox`."""
    names = [f"code_interpreter (server): {name}" for name in ON_CODE_SERVER]
    verdicts = await played(names, tmp_path)
    assert {name: one.reason for name, one in verdicts.items() if one.result != "held"} == {}
    assert len(verdicts) == len(names)


async def test_what_cannot_be_attacked_is_said(tmp_path: Path) -> None:
    (verdict,) = (
        await played(["code_interpreter (server): kill the parent"], tmp_path, "process")
    ).values()
    assert (verdict.result, verdict.reason) == (
        "not applicable",
        "the server runs programs in containers",
    )


async def test_a_server_that_does_not_start_ends_the_battery_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    with pytest.raises(
        InfrastructureError, match=r"(?s)serve sandbox .* did not start: .*/nowhere"
    ):
        await played(["code_interpreter (server): kill the parent"], tmp_path)


@pytest.mark.full
@pytest.mark.docker
async def test_all_attacks_are_held(tmp_path: Path) -> None:
    verdicts = await played(list(BY_NAME), tmp_path)
    assert {name: one.reason for name, one in verdicts.items() if one.result != "held"} == {}
