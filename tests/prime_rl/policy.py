"""A policy of 0.1 M weights that tries something twice, each time with a validate, and then submits."""

from __future__ import annotations

from pathlib import Path

from air import actions, tasks
from air.actions import Action
from air.train.config.embedded_config import EmbeddedConfig
from air.train.config.model_options import SFTConfig
from air.train.model import policy as policies
from air.train.model.sft import train_sft
from air.worlds.research.observations import describe

TASKS = ("titanic", "digits")
SCRIPT = 'echo "method={} level={}" > config\npython3 solve.py'
STEPS = 120


def make(folder: Path) -> Path:
    """Builds it in `folder` and teaches it what it says; returns the Hugging Face folder."""
    talks = [_talk(task, m, level) for task in TASKS for m in range(1, 5) for level in range(1, 5)]
    texts = [message["content"] for talk in talks for message in talk]
    policies.build(folder / "base", texts, hidden=64, layers=2, heads=2, kv_heads=1, vocab=512)
    EmbeddedConfig().set_threads()
    policy = policies.load(folder / "base")
    config = SFTConfig.model_validate(
        {
            "max_steps": STEPS,
            "data": {"batch_size": 6, "seq_len": 768},
            "optim": {"lr": 1e-2, "weight_decay": 0.0},
        }
    )
    train_sft(policy, talks, config)
    policy.save(folder / "policy")
    return folder / "policy"


def _talk(name: str, method: int, level: int) -> list[dict[str, str]]:
    task, fenced = tasks.load(name), actions.get("fenced")
    talk = [
        {"role": "system", "content": fenced.instructions},
        {"role": "user", "content": describe(task)},
    ]
    for turn in range(3):
        action = Action(SCRIPT.format(method, level), "submit" if turn == 2 else "validate")
        talk.append({"role": "assistant", "content": fenced.render("Try.", action)})
        shown = f"[{task.metric}] 0.7{level}1{method} (best 0.7{method}34)\n[{3 - turn} turns left]"
        talk.append({"role": "user", "content": shown})
        method, level = 5 - level, method
    return talk[:-1]
