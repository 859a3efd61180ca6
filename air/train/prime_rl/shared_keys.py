"""Finds keys of a prime-rl run file (TOML) that contradict each other.

prime-rl copies some keys, such as `max_steps`, into the tables of its parts: the trainer, the orchestrator
and the inference servers. It refuses a run file in which a part has another value. It says so only when a
training starts, which can be hours after an experiment of several trainings began.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_MONITORS = ("project", "entity", "name", "group", "tags", "offline")
SHARED: Mapping[str, tuple[str, ...]] = {
    "max_steps": ("trainer.max_steps", "orchestrator.max_steps"),
    "seq_len": ("trainer.model.seq_len", "orchestrator.seq_len"),
    **{
        f"ckpt.{key}": (f"trainer.ckpt.{key}", f"orchestrator.ckpt.{key}")
        for key in ("interval", "keep_last", "keep_interval")
    },
    "rollout_transport": ("trainer.rollout_transport", "orchestrator.rollout_transport"),
    **{
        f"log.{key}": tuple(
            f"{part}.log.{key}" for part in ("trainer", "orchestrator", "inference")
        )
        for key in ("level", "json_logging")
    },
    **{
        f"tokenizer.{key}": (f"trainer.tokenizer.{key}", f"orchestrator.tokenizer.{key}")
        for key in ("name", "trust_remote_code")
    },
    "tokenizer.chat_template": (
        *("trainer.tokenizer.chat_template", "orchestrator.tokenizer.chat_template"),
        "inference.vllm.chat_template",
    ),
    "model.vlm": ("trainer.model.vlm", "orchestrator.model.vlm"),
    **{
        f"monitors.wandb.{key}": (
            *(f"trainer.monitors.wandb.{key}", f"orchestrator.monitors.wandb.{key}"),
        )
        for key in _MONITORS
    },
    "monitors.file.path": ("trainer.monitors.file.path", "orchestrator.monitors.file.path"),
    "monitors.prime.name": ("orchestrator.monitors.prime.name",),
}
"""Maps the dotted path of each key that prime-rl 0.8 copies to the paths of the copies. Without the names of
the model and the folders, which air sets."""
_MUST_AGREE = ("ckpt.interval",)
"""The keys whose copies are compared even if the key itself is not set. prime-rl has more such rules, such as
those about lengths and chat templates of its parts, which it checks when the training starts."""
_ABSENT = object()


def contradiction(data: Mapping[str, Any]) -> tuple[str, str] | None:
    """Returns the dotted path of the first key in the run file `data` that contradicts another key, and the
    path of this other key; None if there is none. A copy that is unset (None or `"None"`) contradicts a key
    that is set, because prime-rl fills in only copies that are absent."""
    for shared, copies in SHARED.items():
        value = _value(data, shared)
        for copy in copies:
            own = _value(data, copy)
            if own is _ABSENT:
                continue
            if value is not None and value is not _ABSENT:
                if own != value:
                    return copy, shared
            elif own is not None and shared in _MUST_AGREE:
                others = (one for one in copies if _value(data, one) != own)
                if (other := next(others, None)) is not None:
                    return copy, other
    return None


def _value(data: Any, dotted: str) -> Any:
    for key in dotted.split("."):
        data = data.get(key, _ABSENT) if isinstance(data, Mapping) else _ABSENT
    return None if data == "None" else data
