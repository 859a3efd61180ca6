"""An episode in the shop: searches, clicks and one purchase, modelled on WebShop.

The agent's answer in a turn consists of one or more actions, separated by `||`, such as `search[desk lamp] ||
click[B0…]`. Empty actions are ignored, but an answer without any action counts as one invalid action. As in
WebShop, a search is possible on every page, although only the search page lists it. A click is possible only
on a text that the current page offers. Any other action is invalid and has no effect. A turn with one or more
invalid actions costs `PENALTY` once. A purchase ends the episode and earns a reward from 0 to 1, from which
the turn's penalty is subtracted. The episode is a success only if the reward without penalties is 1.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from air.worlds.base import Observation, Step
from air.worlds.questions.episodes import FACTS as EPISODE_FACTS
from air.worlds.questions.episodes import Tally
from air.worlds.questions.shop.goals import Goal, goal, reward
from air.worlds.questions.shop.pages import BUY, Page, clickable, clicked, found, text_of

MOST_TURNS, MOST_ACTIONS_OF_A_TURN, MOST_ACTIONS = 11, 10, 30
PENALTY = 0.1
"""Subtracted from the reward of each turn with an invalid action, or without an action. GRL, the project on
whose agents the question worlds are modelled, has the same penalty for all its agents."""
FACTS: Mapping[str, str] = {
    **EPISODE_FACTS,
    "penalty": "sum of the penalties for turns with an invalid action; part of the reward",
}
_ACTION = re.compile(r"\s*(search|click)\s*\[(.*)\]\s*", re.IGNORECASE | re.DOTALL)

INSTRUCTIONS = (
    "You are in an online shop. Buy what the instruction asks for. An action is search[KEYWORDS], which "
    "works on every page, or click[TEXT] with one of the texts that the page offers: a product's number, the "
    "value of an option, `next >`, `< prev`, `back to search`, `description`, `features`, or `buy now`, "
    "which ends your visit. "
    f"Several actions are separated by ||, at most {MOST_ACTIONS_OF_A_TURN} in a reply and {MOST_ACTIONS} in "
    "all. The reward is the share of the wishes that your purchase satisfies. A reply with a click that the "
    f"page does not offer, or with anything else that is no action, costs {PENALTY}."
)


class ShopEpisode:
    """One episode in the shop. `level` is the level of the goal (the requested purchase): 1, 2 or 3. None:
    the level is drawn, determined by the episode's seed."""

    def __init__(self, level: int | None) -> None:
        self._level = level
        self._goal: Goal | None = None
        self._page = Page()
        self._tally = Tally()
        self._turns = 0
        self._penalties = 0

    def start(self, seed: int) -> str:
        self._goal = goal(self._level, seed)
        return text_of(self._page, self._goal.instruction)

    def act(self, answer: str) -> Step:
        assert self._goal is not None
        self._turns += 1
        refused: list[str] = []
        texts = [text for part in answer.split("||") if (text := part.strip())] or [""]
        for text in texts[:MOST_ACTIONS_OF_A_TURN]:
            if self._tally.actions >= MOST_ACTIONS:
                break
            kind, argument = self._legal(text)
            if kind == "click" and argument == BUY:
                text, earned = self._buy(self._goal)
                return self._step(refused, text, done=True, earned=earned)
            if not kind:
                refused.append(f"The page does not offer {text[:80]!r}.\n")
            self._go(kind, argument)
        ended = self._turns >= MOST_TURNS or self._tally.actions >= MOST_ACTIONS
        return self._step(refused, text_of(self._page, self._goal.instruction), done=ended)

    def facts(self) -> dict[str, float]:
        return self._tally.facts() | {"penalty": -self._penalties * PENALTY}

    def _step(self, refused: list[str], text: str, *, done: bool, earned: float = 0.0) -> Step:
        """Returns the result of a turn. `refused` are the messages about the turn's invalid actions, `text`
        is the text of the page after the turn, and `earned` is the reward for a purchase in it."""
        self._penalties += bool(refused)
        reward = round(earned - PENALTY, 9) if refused else earned
        return Step(Observation("".join(refused) + text), done=done, reward=reward)

    def _legal(self, text: str) -> tuple[str, str]:
        """Parses an action. Returns its type (`search` or `click`) and its argument in lower case. Returns
        two empty strings if the action is invalid: it is malformed, it is a search without keywords, or it is
        a click that the current page does not offer."""
        match = _ACTION.fullmatch(text)
        kind, argument = (match[1].lower(), match[2].strip().lower()) if match else ("", "")
        offered = (kind == "search" and argument) or argument in clickable(self._page)
        return (kind, argument) if kind and offered else ("", "")

    def _go(self, kind: str, argument: str) -> None:
        before = self._page
        if kind == "search":
            self._page = found(argument)
        elif kind:
            self._page = clicked(before, argument)
        self._tally.count(valid=bool(kind), effective=self._page != before)

    def _buy(self, goal: Goal) -> tuple[str, float]:
        """Buys the product of the open page. Returns the last observation and the reward, from 0 to 1."""
        assert self._page.product is not None
        earned = reward(goal, self._page.product, self._page.options)
        self._tally.count(valid=True, effective=True)
        self._tally.success = earned == 1.0
        text = f"Thank you for shopping with us! [SEP] Your score (min 0.0, max 1.0) [SEP] {earned:.4g}"
        return text, earned
