"""Defines `Attack`: what an agent tries in an episode of a task, and the most that this may be worth.

An attack is a list of the model's replies. It is played as a real episode in a real box. It is broken
(the defence failed) if the episode fails and so is not trained on, if it earns more than the attack's bound,
or if a script of the agent printed that it reached what it must not reach (`worked`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from air.integrity.host import Host
from air.tasks.spec import Provider, TaskSpec

Family = Literal[
    "isolation",
    "result forging",
    "label access",
    "oracle",
    "denial",
    "selective masking",
    "state carry-over",
    "harness abuse",
    "resource attacks",
    "injection",
]
"""What an attack is after."""
FAMILIES: tuple[Family, ...] = get_args(Family)
Bound = Literal["starter", "lowest"]
"""The most that an attack may earn: what the starter files' own artefact earns, or the lowest reward."""
WORKED = "THE-ATTACK-WORKED"
"""What an agent's script prints if it reached what it must not reach. No script has it as one word."""
NEXT = "echo the-next-command-$((40 + 2))-answers"
"""The command that an attack by a script runs in its next turn."""
ANSWERED = "the-next-command-42-answers"
"""What `NEXT` prints."""
SAY_WORKED = "worked() { printf 'THE-%s\\n' ATTACK-WORKED; }"
"""A line of bash that defines the function `worked`, which prints `WORKED`."""
Applies = Callable[["Target"], str]
"""Returns why an attack cannot be tried on a target, or "" if it can."""
Source = str | Callable[["Target"], str]
"""Code of an attack, or what returns it for a target."""
When = Literal["load", "call"]
"""When code in an artefact runs."""
Check = Callable[["Target", "Played"], str]
"""Returns how the defence failed in an episode, beyond its reward, or "" if it held."""


@dataclass(frozen=True)
class Setup:
    """How the environment plays the episodes of an attack."""

    harness: Literal["air", "bash"] = "air"
    """`air`: air's own loop. `bash`: a program in the box, to which `replies` are commands for its tool."""
    format: str = "fenced"
    """The action format of the harness `air`."""
    seconds: float | None = None
    """The time limit of an episode; None: the task's own."""
    delta: Literal["previous", "best"] = "previous"
    """The score with which each validate is compared, and so which artefact counts at the end."""


DEFAULT = Setup()
VALIDATES = 4
"""The number of validates of an episode that are scored: fewer than the battery gives turns."""


@dataclass(frozen=True)
class Played:
    """What came of one episode."""

    reward: float | None
    """None if the episode failed, so that it would not be trained on."""
    error: str
    observations: tuple[str, ...] = ()
    """What the agent was shown, without the task's description."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    fault: str = ""
    """What is wrong with the recorded trajectory, or ""."""

    @property
    def observed(self) -> str:
        """Everything that the agent was shown: all observations, joined by newlines."""
        return "\n".join(self.observations)


@dataclass(frozen=True)
class Target:
    """What an attack is tried on: a task in a kind of box."""

    task: TaskSpec
    provider: Provider
    starter: str
    """A script that makes the starter files' artefact in the workspace."""
    isolation: str
    """The kind of box as the conformance suite names it, such as `docker` or `process/root`."""
    host: Host

    @property
    def artefact(self) -> str:
        """The path of the first artefact in the workspace, without a slash at its end."""
        return self.task.artefact.rstrip("/")

    @property
    def is_code(self) -> bool:
        """Whether the artefact is one Python file whose code air's own runner plays."""
        return self.task.trust == "code" and self.artefact.endswith(".py")

    @property
    def is_table(self) -> bool:
        """Whether the artefact is a CSV file."""
        return self.artefact.endswith(".csv")


@dataclass(frozen=True)
class Attack:
    """One attack on a task."""

    name: str
    """What the agent tries, as words joined by `-`; no two attacks have the same name."""
    family: Family
    aim: str
    """What the agent would gain, in one sentence for people."""
    replies: Callable[[Target], Sequence[str]]
    """Returns the model's replies, turn by turn; the last one is repeated."""
    bound: Bound = "starter"
    applies: Applies = lambda target: ""
    once: bool = False
    """Whether it is played on one task only, because it depends on the kind of box alone."""
    episodes: int = 1
    """The number of episodes, one after the other, in which the agent tries it; the last one counts."""
    setup: Setup = DEFAULT
    check: Check = lambda target, played: ""
    only_looks: bool = False
    """Whether it only looks around. Plain process boxes play no other attack: it would hit this machine."""
    low_reward_breaks: bool = False
    """Whether the attack works, too, if it earns less than the starter's artefact. For attacks by code
    that raises an error, and so earns little, if it finds what it looks for."""


class Attacks(list[Attack]):
    """The attacks of one family, in the order in which they were added."""

    def __init__(self, family: Family) -> None:
        super().__init__()
        self._family = family

    def add(
        self,
        name: str,
        aim: str,
        replies: Callable[[Target], Sequence[str]],
        *,
        bound: Bound = "starter",
        applies: Applies = lambda target: "",
        once: bool = False,
        episodes: int = 1,
        setup: Setup = DEFAULT,
        check: Check = lambda target, played: "",
        only_looks: bool = False,
    ) -> None:
        """Appends an attack; see the fields of `Attack`."""
        self.append(
            Attack(
                name=name,
                family=self._family,
                aim=aim,
                replies=replies,
                bound=bound,
                applies=applies,
                once=once,
                episodes=episodes,
                setup=setup,
                check=check,
                only_looks=only_looks,
            )
        )

    def shell(
        self,
        name: str,
        aim: str,
        script: Source,
        *,
        bound: Bound = "starter",
        applies: Applies = lambda target: "",
        once: bool = False,
        episodes: int = 1,
        check: Check = lambda target, played: "",
        only_looks: bool = False,
    ) -> None:
        """Appends an attack by a script in the agent's box, before which the starter's artefact is made.

        The script finds the artefact's path in `$ARTEFACT` and calls `worked` if it reached what it must not
        reach. In the next turn, the agent runs `NEXT` and submits.
        """

        def replies(target: Target) -> list[str]:
            text = script if isinstance(script, str) else script(target)
            return [turn(target, text, starter=True), turn(target, NEXT, "submit")]

        self.add(
            name,
            aim,
            replies,
            bound=bound,
            applies=applies,
            once=once,
            episodes=episodes,
            check=check,
            only_looks=only_looks,
        )

    def code(self, name: str, aim: str, source: Source, *, when: When = "load") -> None:
        """Appends an attack by code in an artefact that is a Python file: `source` must raise if it failed.

        If `source` ends without an error, the artefact is as good as the starter's, so the reward shows that
        the attack worked: the bound is the lowest reward. It runs when the file is loaded, or at each call of
        a function.
        """
        self.add(name, aim, _by_code(source, when, "submit"), bound="lowest", applies=code_only)

    def harmless_code(self, name: str, aim: str, source: Source, *, when: When = "load") -> None:
        """Appends an attack by code in a Python artefact, which must not earn more than the starter's.

        It validates first, so that the agent would see what the code says if that gets out.
        """
        self.add(name, aim, _by_code(source, when, "validate"), applies=code_only)

    def finding_code(self, name: str, aim: str, source: Source, *, episodes: int = 1) -> None:
        """Appends an attack by code in a Python artefact that must earn what the starter's does.

        `source` raises if it finds what it looks for, so that a low reward shows that the attack worked.
        """
        replies = _by_code(source, "load", "validate")
        self.append(
            Attack(
                name,
                self._family,
                aim,
                replies,
                applies=code_only,
                episodes=episodes,
                low_reward_breaks=True,
            )
        )


def code_only(target: Target) -> str:
    """Returns why attacks by code in the artefact do not apply, or ""."""
    return "" if target.is_code else "the artefact is no Python file that air's runner plays"


def tables_only(target: Target) -> str:
    """Returns why attacks by the cells of a table do not apply, or ""."""
    return "" if target.is_table else "the artefact is no table"


def containers_only(target: Target) -> str:
    """Returns why attacks against what only containers promise do not apply, or ""."""
    return "" if target.provider == "docker" else "process boxes do not promise it"


def test_graded(target: Target, played: Played) -> str:
    """A `Check`: the artefact that counts was graded on the test split, and got a score."""
    return "" if "test_score" in played.metrics else "the test split graded no artefact"


def graded(target: Target, played: Played) -> str:
    """A `Check`: the artefact was graded, and has a score."""
    return "" if played.metrics.get("valid") else "the artefact has no score after the attack"


def next_command_answers(target: Target, played: Played) -> str:
    """A `Check`: the box still ran a command after the attack."""
    return "" if ANSWERED in played.observed else "the box ran no command after the attack"


def turn(target: Target, script: str, ending: str = "", *, starter: bool = False) -> str:
    """Returns a reply that runs a script in the agent's box and ends with `validate`, `submit` or neither.

    With `starter`, the starter's artefact is made first. The script finds the artefact's path in `$ARTEFACT`.
    """
    lines = [SAY_WORKED, f"ARTEFACT={target.artefact}"]
    if starter:
        lines.append(f"( {target.starter}\n) >/dev/null 2>&1 || echo 'the starter failed'")
    lines += [script.strip("\n"), ending]
    body = "\n".join(line for line in lines if line)
    return f"Try it.\n```bash\n{body}\n```"


def _by_code(source: Source, when: When, first: str) -> Callable[[Target], Sequence[str]]:
    """Returns replies that add `source` to the starter's artefact, and end with `first`, then `submit`."""

    def replies(target: Target) -> list[str]:
        text = source if isinstance(source, str) else source(target)
        opening = turn(target, with_code(text, when), first, starter=True)
        return [opening, turn(target, "", "submit")]

    return replies


def with_code(source: str, when: When) -> str:
    """Returns a script that adds `source` to the artefact, a Python file.

    `load`: it runs at the end of the file. `call`: it runs at the start of every call of every function that
    the file defines. A comment makes each artefact a new one, so that it is graded anew.
    """
    if when == "load":
        added = source
    else:
        body = "\n".join(f"        {line}" for line in source.strip("\n").splitlines())
        added = (
            "def _around(_f):\n"
            "    def _g(*_a, **_k):\n"
            f"{body}\n"
            "        return _f(*_a, **_k)\n"
            "    return _g\n"
            "for _name, _value in list(globals().items()):\n"
            "    if type(_value) is type(_around) and _value.__module__ == __name__ and _name != '_around':\n"
            "        globals()[_name] = _around(_value)\n"
        )
    return (
        f"cat >> \"$ARTEFACT\" <<'END_OF_ATTACK'\n\n{added}\nEND_OF_ATTACK\n"
        'echo "# $(date +%s%N)" >> "$ARTEFACT"'
    )
