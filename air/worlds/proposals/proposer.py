"""Loads the tasks `proposal:FILE.toml`, in which the agent (the proposer) writes one question with its
answer. The reward depends on the question's difficulty.

The executor, another model whose weights are frozen, answers the question k times (`scorer`). The reward
depends on how far the answers agree and on how similar the question is to the latest questions
(`air.rewards.proposals`). There are two definitions of the reward, after the method Agent0: `as_coded` and
`published` (see `ProposerSettings.reward`). With `published` the reward also depends on the executor's tool
calls. A malformed proposal earns −1 − `repetition`/`window` with `as_coded` and 0 with `published`, and is
not sent to the executor.
If the executor's service fails, the episode has no reward and is left out of training. If the service fails
only on this question, all k answers count as unreadable.

Equal proposals do not always earn equal rewards, because a question is compared with the earlier proposals of
the same process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import Field

from air.actions.base import Action
from air.config import BaseConfig, read_toml, validate
from air.rewards.proposals.agreement import (
    Agreement,
    Definition,
    Equality,
    agreement,
    check_equality,
    equal_answers,
    p_hat,
)
from air.rewards.proposals.novelty import MOST_TEXTS, Window
from air.rewards.proposals.proposer_reward import REWARDS, Proposal, Weights, malformed_reward
from air.rewards.proposals.reading import LONGEST_QUESTION, Malformed, Question, read
from air.worlds.base import Observation, Step
from air.worlds.proposals.comparison_threads import compare_in_thread
from air.worlds.proposals.scorer import Scorer
from air.worlds.proposals.whole_reply import FORMAT
from air.worlds.sources import WorldTask

INSTRUCTIONS = (
    "Propose one new problem that is hard, and can be solved. Write it as <question>…</question>, and after "
    "it the final answer as \\boxed{…}."
)
LEAST, MOST = 0.3, 0.8
"""The smallest and the largest p̂ (the agreement of the executor's answers) at which a proposal counts as a
success: its question is difficult enough, but not too difficult, to be worth training on."""
FACTS: Mapping[str, str] = {
    "success": "1 if p̂ of the proposal is between 0.3 and 0.8, else 0",
    "proposal_read": "1 if the proposal is well formed, else 0",
    "p_hat": "p̂ of the proposal; 0 if it is malformed or nobody answered it",
    "answers_read": "share of the executor's replies with a readable answer",
    "cluster_share": "|the proposal's cluster| / window; 0 if it is malformed",
    "executor_calls": "mean number of tool calls in a reply of the executor",
}


class ProposerSettings(BaseConfig):
    """The settings in the file of a task `proposal:FILE.toml`, in which an agent (the proposer) writes a
    question that another model (the executor) then answers several times."""

    url: str | None = None
    """The base URL of the service in which the executor (the model with frozen weights) answers questions;
    `/evaluate` is appended. None: proposals are only parsed, and earn 0."""
    k: int = Field(10, ge=1, le=64)
    """k: the number of times that the executor (the frozen model) answers each question."""
    max_turns: int = Field(1, ge=1, le=64)
    """The maximum number of turns of the executor for one answer."""
    sampling: dict[str, Any] = Field(default_factory=dict)
    """The executor's sampling parameters `temperature`, `top_p` and `max_tokens`, such as
    `{ temperature = 1.0, max_tokens = 1024 }`. For a parameter that is left out, the executor's service has
    a default."""
    seconds: float = Field(600.0, gt=0, allow_inf_nan=False)
    """The time limit, in seconds, of one request for k answers."""
    reward: Definition = "as_coded"
    """The definition of the reward and of p̂, the agreement of the executor's answers. Both follow the method
    Agent0: `as_coded` is the definition in Agent0's code, and `published` the one in its paper."""
    uncertainty: float = Field(1.0, ge=0, allow_inf_nan=False)
    """The weight of the reward term for uncertainty, which is highest if p̂, the agreement of the executor's
    answers, is 0.5."""
    tool: float = Field(1.0, ge=0, allow_inf_nan=False)
    """The weight of the reward term for tool calls. With the definition `published`, the term counts the
    executor's tool calls. With `as_coded`, it counts the proposer's; the proposer has no tools, so the term
    is 0."""
    repetition: float = Field(1.0, ge=0, allow_inf_nan=False)
    """The weight of the deduction for similar questions. 0: repeated questions cost nothing. With `as_coded`
    and a weight much above 1, a repeated question can earn less than a malformed proposal."""
    window: int = Field(128, ge=1, le=MOST_TEXTS)
    """B: the number of latest proposals, this one included, that are clustered by similarity. The deduction
    for similar questions is the number of proposals in this proposal's cluster, divided by B. Set B to the
    batch size."""
    equality: Equality = "math"
    """The rule by which two answers are equal: `math`, by the checker of mathematical answers, or `forms`,
    only by canonical forms: `0.5` equals `1/2`, but `2x` does not equal `x*2`."""
    least_valid: float = Field(0.5, ge=0, le=1)
    """The minimum share of the executor's replies that must have a readable answer. If the share is smaller,
    p̂ (the agreement of the answers) is 0, because a question that nobody can answer is not an uncertain
    one. 0: no minimum, as in the method Agent0."""
    longest: int = Field(LONGEST_QUESTION, ge=1, le=LONGEST_QUESTION)
    """The maximum length of a question, in characters."""
    instructions: str = INSTRUCTIONS
    """The text of the first prompt, which tells the proposer what to write."""

    def weights(self) -> Weights:
        """Returns the weights of the reward's three terms."""
        return Weights(self.uncertainty, self.tool, self.repetition)

    def malformed_reward(self) -> float:
        """Returns the reward of a malformed proposal: 0 without a `url`, as for every proposal."""
        return malformed_reward(self.reward, self.window, self.weights()) if self.url else 0.0


class ProposalWorld:
    """A world (an environment for an agent) in which an episode has one action: a proposal, that is, a
    question with its answer. The proposal ends the episode and earns the reward. `window` holds the latest
    questions, with which a new question is compared."""

    def __init__(self, settings: ProposerSettings, window: Window) -> None:
        self._settings, self._window = settings, window
        self._ended = False
        self._facts = dict.fromkeys(FACTS, 0.0)

    async def reset(self, seed: int) -> Observation:
        self._ended, self._facts = False, dict.fromkeys(FACTS, 0.0)
        return Observation("")

    async def step(self, action: Action) -> Step:
        if self._ended:
            return Step(Observation("The episode has ended."), done=True)
        settings = self._settings
        try:
            question = read(action.answer, settings.longest)
        except Malformed as error:
            self._ended = True
            return Step(Observation(str(error)), done=True, reward=settings.malformed_reward())
        reward = await self._reward_of(question) if settings.url else 0.0
        self._facts["proposal_read"] = 1.0
        self._ended = True
        return Step(Observation(""), done=True, reward=reward)

    async def _reward_of(self, question: Question) -> float:
        """Lets the executor (a frozen model behind a service) answer a well-formed question k times, and
        returns the question's reward. Also updates the episode's facts (numbers about the episode). Raises
        InfrastructureError if the service or a comparison of answers fails, and UserCodeError if a tool of
        the executor hangs."""
        s = self._settings
        assert s.url is not None
        answered = await Scorer(s.url, s.k, s.max_turns, s.sampling, s.seconds).answers(
            question.text
        )
        measured = partial(self._measured, question, answered.answers)
        found, p, share = await compare_in_thread(measured)
        self._facts |= {
            "success": float(LEAST <= p <= MOST),
            "p_hat": p,
            "answers_read": found.valid / found.k,
            "cluster_share": share,
            "executor_calls": answered.tool_calls,
        }
        calls = answered.tool_calls if found.suffices(s.least_valid) else 0.0
        proposal = Proposal(True, p, share, executor_calls=calls)
        return REWARDS[s.reward](proposal, s.weights())

    def _measured(
        self, question: Question, answers: Sequence[str | None]
    ) -> tuple[Agreement, float, float]:
        """Compares the executor's answers with each other. Returns three values: their agreement, p̂ (the
        measure of this agreement from which the reward is computed), and the number of similar questions in
        the window of the latest questions, divided by the window's size. Adds the question to this window."""
        s = self._settings
        found = agreement(answers, equal_answers(s.equality, question.text))
        p = p_hat(found, question.answer, s.reward, s.least_valid)
        return found, p, self._window.share(question.text)

    def facts(self) -> dict[str, float]:
        return dict(self._facts)

    async def close(self) -> dict[str, Any]:
        self._ended = True
        return self.facts()


class ProposalSource:
    """Loads the tasks whose id begins with `proposal:`. It implements `air.worlds.sources.WorldSource`."""

    def __init__(self) -> None:
        self._windows: dict[tuple[str, int], Window] = {}

    def load(self, name: str) -> WorldTask:
        """Returns the task `proposal:FILE`. `name` is FILE, the path of a TOML file, which may be relative to
        the current folder. Raises MissingError if the file or a package does not exist, and ConfigError if a
        setting is wrong."""
        path = Path(name).expanduser().absolute()
        settings = validate(ProposerSettings, read_toml(path), where=str(path))
        check_equality(settings.equality)
        # One window for all episodes of a task in this process, however often the task is loaded.
        window = self._windows.setdefault((str(path), settings.window), Window(settings.window))
        return WorldTask(
            id=f"proposal:{name}",
            make=lambda: ProposalWorld(settings, window),
            instructions=settings.instructions,
            digest=settings.model_copy(update={"url": None}).model_dump_json(),
            replays=False,
            max_turns=1,
            format=FORMAT,
            unanswered=settings.malformed_reward(),  # an empty reply is a malformed proposal
            seconds=3 * settings.seconds
            + 600.0,  # a slow scorer must fail before the episode's time ends
            facts=FACTS,
        )

    def names(self) -> list[str]:
        """Returns the task names that the command `air tasks` lists: none, because the tasks come from files
        of the user."""
        return []


SOURCE = ProposalSource()
