"""Defines `Attack`: the replies of a scripted agent that tries to cheat in an episode of a task, and the
largest reward that they deserve.

An attack is run as a real episode in a real box (the agent's container). Its result is "broken", which means
that the defence failed, in any of these cases:

- The episode fails, so that training would not use it, and the agent would escape a bad reward.
- The episode earns more than the attack's bound or, in an attack with `low_reward_breaks`, too little.
- The agent's script calls the shell function `worked`, because it reached something forbidden.
- The trajectory of the episode is unreadable or inconsistent.
- The attack's own `check` finds a fault.
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
"""The families of attacks, by the goal of an attack."""
FAMILIES: tuple[Family, ...] = get_args(Family)
Bound = Literal["starter", "lowest"]
"""The name of the largest reward that an attack deserves. `starter`: the reward of an agent that changes none
of the files which the task gives it, and hands in what they produce; or, if it is higher, the reward of an
agent that hands in nothing. `lowest`: the task's lowest normalised score φ or, if it is lower, the reward of
an agent that hands in nothing."""
WORKED = "THE-ATTACK-WORKED"
"""The text that an attack's script prints if it reached something forbidden. The battery (air's runner of
attacks) searches for it in the observations, the texts that the agent gets. Scripts build the text from
parts, so that an observation which only quotes a script does not contain it."""
NEXT = "echo the-next-command-$((40 + 2))-answers"
"""The command that the agent runs in the turn after a script's attack. It shows whether the box still runs
commands."""
ANSWERED = "the-next-command-42-answers"
"""The text that the command `NEXT` prints. If this text is missing in the observation, the box no longer runs
commands after the attack."""
SAY_WORKED = "worked() { printf 'THE-%s\\n' ATTACK-WORKED; }"
"""A line of bash that defines the function `worked`. An attack's script calls this function to report that it
reached something forbidden; the function prints the text `WORKED`."""
Applies = Callable[["Target"], str]
"""A function that says whether an attack can be tried on a target (a task in a kind of box). Returns the
reason why it cannot, or an empty string if it can."""
Source = str | Callable[["Target"], str]
"""The code of an attack (a shell script or Python code), or a function that returns the code for a target."""
When = Literal["load", "call"]
"""When the code that an attack adds to an artefact (the Python file that the agent hands in) runs: when the
file is loaded, or at each call of its functions."""
Check = Callable[["Target", "AttackEpisode"], str]
"""A function that checks an attack's episode for faults that the reward does not show. Returns a message
about how the defence failed, or an empty string if the defence held."""


@dataclass(frozen=True)
class Setup:
    """The settings of air's environment for the episodes of an attack."""

    harness: Literal["air", "bash"] = "air"
    """The harness, which plays the agent. `air`: air's own loop of model replies and observations. `bash`: a
    program in the box (container) plays the agent, and runs each of the replies as a command."""
    format: str = "fenced"
    """The action format (the syntax in which the model writes actions); it matters only if `harness` is
    `air`."""
    sampled: bool = False
    """Whether the model's replies come as token ids, as in training, and not as messages, as in
    evaluation."""
    seconds: float | None = None
    """The time limit of an episode; None: the task's own."""
    delta: Literal["previous", "best"] = "previous"
    """The earlier score with which each new score is compared to compute the reward: the previous score, or
    the best score so far. The setting also decides which artefact (result of the agent) counts at the end:
    the last artefact, or the artefact with the best score."""


DEFAULT = Setup()
VALIDATES = 4
"""The number of gradings (`validate`) that the agent may request in an episode. It is smaller than the number
of turns, so that an attack can try to get more gradings than allowed."""


@dataclass(frozen=True)
class AttackEpisode:
    """The result of one episode of an attack."""

    reward: float | None
    """The reward; None if the episode failed, so that training would not use it."""
    error: str
    """The message of the failure; empty if the episode did not fail."""
    observations: tuple[str, ...] = ()
    """The observations (results of its actions) that the agent got, without the task's description."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """The metrics of the episode (scores, counts and times), by name."""
    fault: str = ""
    """A message about an inconsistency in the trajectory, the record of the episode; empty if there is
    none."""

    @property
    def observed(self) -> str:
        """All observations of the agent, joined by newlines."""
        return "\n".join(self.observations)


@dataclass(frozen=True)
class Target:
    """The target of an attack: a task, and the kind of box (container, or process) in which its episode
    runs."""

    task: TaskSpec
    provider: Provider
    starter: str
    """A bash script that makes an honest artefact (file to hand in) in the workspace from the task's
    unchanged starter files."""
    isolation: str
    """The kind of box, as air's conformance suite (the tests that every kind of box must pass) names it, such
    as `docker` or `process/root`."""
    host: Host

    @property
    def artefact(self) -> str:
        """The path, relative to the workspace, of the artefact, which is the file or folder that the task
        asks the agent to make. If it asks for several, the first. Without a slash at the end."""
        return self.task.artefact.rstrip("/")

    @property
    def is_code(self) -> bool:
        """Whether the artefact (what the agent hands in) is one Python file whose code air's own runner
        executes."""
        return self.task.trust == "code" and self.artefact.endswith(".py")

    @property
    def is_table(self) -> bool:
        """Whether the artefact (what the agent hands in) is a CSV file."""
        return self.artefact.endswith(".csv")


@dataclass(frozen=True)
class Attack:
    """An attack that is tried on tasks: the scripted replies of an agent that tries to cheat, and the largest
    reward that they deserve."""

    name: str
    """A short description of the agent's action, as words joined by `-`; no two attacks have the same
    name."""
    family: Family
    aim: str
    """What the agent would gain if the attack worked, in one sentence for people."""
    replies: Callable[[Target], Sequence[str]]
    """A function that returns the model's replies in an episode on a target, one for each turn. The last
    reply is repeated until the episode ends."""
    bound: Bound = "starter"
    applies: Applies = lambda target: ""
    once: bool = False
    """Whether the attack is tried on only one task, because its result depends only on the kind of box."""
    episodes: int = 1
    """The number of consecutive episodes in which the agent tries the attack. Only the last episode is
    judged, so earlier ones can prepare it."""
    setup: Setup = DEFAULT
    check: Check = lambda target, played: ""
    only_looks: bool = False
    """Whether the attack changes nothing. Only such attacks are run in process boxes (boxes without a
    container) that isolate nothing, because others would damage this machine."""
    low_reward_breaks: bool = False
    """Whether a reward below that for the unchanged starter files also means that the attack worked. True for
    code that raises an error if it finds something hidden: the error lowers the reward, and so shows the
    find."""


class Attacks(list[Attack]):
    """A list of the attacks of one family (attacks with the same goal), with methods that add attacks."""

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
        """Appends an attack of this family to the list. `name` describes the agent's action, `aim` says what
        the agent would gain, `replies` returns the model's replies, and `bound` names the largest deserved
        reward. All parameters are the fields of `Attack` with the same names."""
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
        """Appends an attack by a shell script in the agent's box. Before the script runs, an honest artefact
        (what the agent hands in) is made from the task's unchanged starter files.

        The script finds the artefact's path in `$ARTEFACT`. If it reaches something forbidden, it calls the
        predefined shell function `worked`, which reports the success. In the next turn, the agent runs the
        command `NEXT`, which shows whether the box still runs commands, and submits. `aim` says what the
        agent would gain; this and the other parameters are the fields of `Attack` with the same names.
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
        """Appends an attack by the Python code `source`, which is added to an honest artefact, the Python
        file that the agent hands in. The code must raise an error if the attack fails.

        An error gives the artefact the lowest reward, which is the largest that the attack deserves. If there
        is no error, the artefact earns the higher reward of the honest artefact, which shows that the attack
        worked. `when`: whether the code runs when the file is loaded, or at each call of a function. `aim`:
        what the agent would gain.
        """
        self.add(name, aim, _by_code(source, when, "submit"), bound="lowest", applies=code_only)

    def harmless_code(self, name: str, aim: str, source: Source, *, when: When = "load") -> None:
        """Appends an attack by the Python code `source`, which is added to an honest artefact, the Python
        file that the agent hands in. The defence holds if the artefact earns no more with this code than
        without it.

        The agent requests a grading (`validate`) before it submits, so that its observations would show any
        text that the code gets out of the grader. The parameters are as in `code`.
        """
        self.add(name, aim, _by_code(source, when, "validate"), applies=code_only)

    def finding_code(self, name: str, aim: str, source: Source, *, episodes: int = 1) -> None:
        """Appends an attack by the Python code `source`, which looks for something hidden. The code is added
        to an honest artefact, the Python file that the agent hands in. The defence holds if the artefact
        earns as much with this code as without it.

        If the code finds what it looks for, it raises an error. Then the artefact earns little, so a low
        reward shows that the attack worked. Of `episodes` consecutive episodes, only the last is judged.
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
    """Checks that the artefact, which is what the target's task asks the agent to hand in, is code, so that
    attacks by code can be tried. Returns the reason why they cannot, or an empty string if they can."""
    return "" if target.is_code else "the artefact is no Python file that air's runner plays"


def tables_only(target: Target) -> str:
    """Checks that the artefact, which is what the target's task asks the agent to hand in, is a table, so
    that attacks by its cells can be tried. Returns the reason why they cannot, or an empty string if they
    can."""
    return "" if target.is_table else "the artefact is no table"


def containers_only(target: Target) -> str:
    """Checks that the target's box is a container, for attacks on a protection that only containers give.
    Returns the reason why such an attack cannot be tried, or an empty string if it can."""
    return "" if target.provider == "docker" else "process boxes do not promise it"


def guest_apart(target: Target) -> str:
    """Checks that commands in the target's box run as another user than the guest, the program that starts
    them, for attacks on the guest. Returns the reason why such an attack cannot be tried, or an empty string
    if it can."""
    apart = target.isolation in ("docker", "process/root")
    return "" if apart else "commands are the guest's user here"


def test_graded(target: Target, played: AttackEpisode) -> str:
    """Checks that the final artefact (what the agent handed in) got a score on the test split of the data.
    Returns a message if it got none, otherwise an empty string."""
    return "" if "test_score" in played.metrics else "the test split graded no artefact"


def graded(target: Target, played: AttackEpisode) -> str:
    """Checks that the artefact (what the agent handed in) got a score in spite of the attack. Returns a
    message if it got none, otherwise an empty string."""
    return "" if played.metrics.get("valid") else "the artefact has no score after the attack"


def next_command_answers(target: Target, played: AttackEpisode) -> str:
    """Checks that the box still ran a command (`NEXT`) after the attack. Returns a message if it did not,
    otherwise an empty string."""
    return "" if ANSWERED in played.observed else "the box ran no command after the attack"


def turn(target: Target, script: str, ending: str = "", *, starter: bool = False) -> str:
    """Returns a model's reply that runs the shell script `script` in the agent's box. `ending` is the action
    after the script: `validate` (request a grading), `submit`, or "" for none.

    With `starter`, the reply first makes an honest artefact (what the agent hands in) from the task's
    unchanged starter files. The script finds the artefact's path in `$ARTEFACT`.
    """
    lines = [SAY_WORKED, f"ARTEFACT={target.artefact}"]
    if starter:
        lines.append(f"( {target.starter}\n) >/dev/null 2>&1 || echo 'the starter failed'")
    lines += [script.strip("\n"), ending]
    body = "\n".join(line for line in lines if line)
    return f"Try it.\n```bash\n{body}\n```"


def _by_code(source: Source, when: When, first: str) -> Callable[[Target], Sequence[str]]:
    """Returns a function that returns the two replies of an attack by Python code on a target. The first
    reply makes an honest artefact (what the agent hands in) from the task's unchanged starter files, adds the
    code `source` to it, and takes the action `first` (`validate` or `submit`). The second reply submits."""

    def replies(target: Target) -> list[str]:
        text = source if isinstance(source, str) else source(target)
        opening = turn(target, with_code(text, when), first, starter=True)
        return [opening, turn(target, "", "submit")]

    return replies


def with_code(source: str, when: When) -> str:
    """Returns a shell script that adds the Python code `source` to the artefact, the Python file that the
    agent hands in.

    With `when = "load"`, the code runs at the end of the file. With `when = "call"`, it runs at the start of
    every call of every function that the file defines. The script also adds a random comment: each artefact
    differs, so no cached grade of an earlier artefact is used.
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
