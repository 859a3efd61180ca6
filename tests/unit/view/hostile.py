"""A run whose agent wrote what could hurt a viewer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from air.trajectories import Recorder, trained_tokens
from air.trajectories.trained_tokens import Conversation, Message, Payment, StepTokens

SCRIPT = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
LINK = (
    "[click](javascript:alert(1)) ![i](http://evil.invalid/x.png) $$\\href{http://evil.invalid}{x}$$ "
    ":material/home:"
)
ESCAPES = (
    "\x1b]0;owned\x07\x1b[2J\x1b[31mred\x1b[0m \x1b]8;;http://evil.invalid\x07l\x1b]8;;\x07\x9b31m"
    "\x00\u202e"
)
BAR = "\r 10%|#         |\r100%|##########| done\n"
EVIL = f"{SCRIPT} {LINK} {ESCAPES}\n{BAR}</pre></details></style>"


def run(folder: Path, name: str = "hostile") -> Path:
    """Writes the run `name`, of two episodes and one step; returns its folder."""
    root = folder / name
    trajectories = root / "trajectories"
    for episode in ("aa", "bb"):
        _episode(trajectories, episode)
    rows = [
        {"step": 1, "reward": 0.5, "episodes": 2, "tasks": {EVIL: {"reward": 0.5, "scores": [1]}}}
    ]
    (root / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    members: list[dict[str, Any]] = [
        {"episode": e, "reward": 0.5, "advantage": a} for e, a in (("aa", 0.25), ("bb", -0.25))
    ]
    group = {
        "v": 1,
        "step": 1,
        "group": 0,
        "task": EVIL,
        "episodes": [*members, {"episode": None, "error": EVIL}],
    }
    (root / "groups.jsonl").write_text(json.dumps(group) + "\n")
    (root / "config.json").write_text(
        json.dumps({"model": {"name": EVIL}, EVIL: EVIL, "max_steps": 1})
    )
    trained_tokens.write(root, _tokens())
    return root


def _tokens() -> StepTokens:
    """The tokens of episode `aa`: in each of its three turns a masked one and two sampled ones."""
    messages = []
    for _ in range(3):
        drawn = np.array([-0.5, -2.0], np.float32)
        ids, sampled = np.array([1, 2, 3], np.int32), np.array([False, True, True])
        ones = np.full_like(drawn, 0.25)
        messages.append(Message(ids, sampled, drawn, drawn + np.float32(0.1), ones, (0, 1)))
    payment = Payment(3, 1, {"delta": 0.5, EVIL: 0.25})
    conversation = Conversation("aa", "", EVIL, 0, tuple(messages), (payment,))
    return StepTokens(1, 1.0, False, (conversation,), {1: "<|assistant|>", 2: EVIL, 3: "last"})


def _episode(folder: Path, name: str) -> None:
    with Recorder(folder, name) as recorder:
        recorder.write(
            "start",
            episode=name,
            task=EVIL,
            model=EVIL,
            metric=EVIL,
            direction="higher",
            baseline=0.1,
            isolation=EVIL,
            seed=0,
            system=EVIL,
            prompt=EVIL,
        )
        reply = f"{EVIL}\n```bash\n{EVIL}\n```\n{EVIL}"
        diff = {
            "text": f"--- a\n+++ b\n-old\n+{EVIL}",
            "files": [{"path": EVIL, "status": EVIL, "note": EVIL}],
        }
        for turn in (1, 2, 3):
            recorder.write(
                "step",
                turn=turn,
                reply=reply,
                reasoning=EVIL,
                action=EVIL,
                observation=EVIL,
                shown=LINK,
                code=turn - 1,
                diff=diff,
            )
        recorder.write(
            "validate",
            turn=3,
            score=0.5,
            phi=0.4,
            delta=0.4,
            problem=EVIL,
            fault=f"exit 137 {EVIL}",
            metrics={EVIL: 0.5},
        )
        recorder.write(
            "end", ok=False, why=EVIL, error=EVIL, reward=None, terms={EVIL: 0.4}, metrics={}
        )
