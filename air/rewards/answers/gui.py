"""The answer checker `gui`, which grades one action on a screen: `click(x, y)`, `type("text")` or
`scroll("down")`.

All coordinates are fractions of the screen's size, from 0 to 1. The accuracy of an action is 0 if the action
is malformed or not of the type `gt_action` (`click`, `type` or `scroll`), 0.5 if only its argument is wrong,
and 1 if it is right. A click is right if it is inside the rectangle `gt_bbox` (left, top, right, bottom) or,
if `gt_bbox` is a point (x, y), less than 0.0707 away from the point. A typed text is right if its word F1
with `gt_input_text` is at least 0.5. A scroll direction is right if it equals `gt_input_text`, ignoring case.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from air.errors import ConfigError
from air.rewards.answers.extraction import outside_thoughts
from air.rewards.answers.texts import overlap
from air.rewards.answers.verdict import Verdict

KINDS = ("click", "type", "scroll")
_SHARE = r"\s*(?:0(?:\.[0-9]{1,9})?|1(?:\.0{1,9})?)\s*"
_ACTION = re.compile(
    rf"""click\((?P<x>{_SHARE}),(?P<y>{_SHARE})\)
    |(?P<kind>type|scroll)\(\s*(?P<quote>["'])(?P<text>[^\n]{{0,2000}})(?P=quote)\s*\)""",
    re.VERBOSE,
)
_NEAR = 0.05 * math.sqrt(2)
_RIGHT_TEXT = 0.5


def gui(
    prediction: str, gt_action: str, gt_bbox: Sequence[float] = (), gt_input_text: str = ""
) -> Verdict:
    """Grades an answer that should be one action on a screen. The reward is 0.8 times the accuracy (1 for the
    right action, 0.5 if only its argument is wrong, such as the place of a click, else 0), plus 0.2 if the
    answer's last line is exactly one well-formed action. The other parameters are fields of the dataset row:
    the type of the right action and its argument. Raises ConfigError for a malformed row."""
    wanted = gt_action.strip().lower()
    if wanted not in KINDS:
        raise ConfigError(
            f"must be one of {', '.join(KINDS)}, not {gt_action!r:.80}",
            where="field gt_action of the row",
            remedy="correct the row",
        )
    if wanted == "click" and len(gt_bbox) not in (2, 4):
        raise ConfigError(
            "a click needs a point (2 numbers) or a box (4 numbers)",
            where="field gt_bbox of the row",
            remedy="correct the row",
        )
    if wanted != "click" and not gt_input_text.strip():
        raise ConfigError(
            f"the action {wanted} needs a text",
            where="field gt_input_text of the row",
            remedy="add it",
        )
    text = outside_thoughts(prediction).strip().rpartition("\n")[2]
    action = _ACTION.fullmatch(text.removeprefix("Action:").strip())
    accuracy = 0.0
    if action is not None and (action["kind"] or "click") == wanted:
        accuracy = 1.0 if _is_right(action, gt_bbox, gt_input_text) else 0.5
    formed = float(action is not None)
    return Verdict(0.8 * accuracy + 0.2 * formed, {"accuracy": accuracy, "format": formed})


def _is_right(action: re.Match[str], box: Sequence[float], text: str) -> bool:
    if action["kind"] == "scroll":
        return action["text"].strip().lower() == text.strip().lower()
    if action["kind"] == "type":
        return overlap(action["text"], text).f1 >= _RIGHT_TEXT
    x, y = float(action["x"]), float(action["y"])
    if len(box) == 2:
        return math.dist((x, y), box) < _NEAR
    left, top, right, bottom = box
    return left <= x <= right and top <= y <= bottom
