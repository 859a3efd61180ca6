"""Chooses the seed with which a task's data is split into a part that the agent sees and a hidden part for
grading, so that no agent can know the hidden part.

The recorded scores of tasks hold for one public seed, which `air tasks check` uses. Episodes use secret
seeds: each seed is a keyed hash (HMAC-SHA256) of the task's id, with a secret text as the key. The secret is
the setting `split_seed`; without it, the environment variable `AIR_SPLIT_SEED`; without both, the secret of
this installation, which is made once and stored in the cache folder. The word `public` instead of a secret
chooses the public seed. Records of episodes do not contain the secret, only its fingerprint (a short hash).
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
from dataclasses import dataclass, field
from pathlib import Path

from air import paths
from air.errors import ConfigError, boundary

VARIABLE = "AIR_SPLIT_SEED"
PUBLIC = "public"
SPLIT_SEED = 1912
"""The public seed, which splits each task's data unless a secret seed is used. A task's baseline and
target, and the recorded scores of its solvers, hold only for this seed."""
_FILE = "split_secret"
_SECRET = re.compile(r"[0-9a-f]{64}\n")
_DATA_BITS, _GRADING_BITS = 63, 31  # 31: numpy's and scikit-learn's older functions take no more


@dataclass(frozen=True)
class Split:
    """One split of one task's data into a part that the agent sees and a hidden part."""

    name: str
    """The split's name in records: `public`; `seed N` if a user named the seed N; otherwise the fingerprint
    (a short hash) of the secret text from which `seed` is computed."""
    seed: int = field(repr=False)
    """The seed with which the data are split."""

    @property
    def public(self) -> bool:
        """Whether this split uses the public seed. The task's declared and recorded scores hold only for this
        seed."""
        return self.seed == SPLIT_SEED

    def grading_seed(self, number: int) -> int:
        """Returns the seed for the random numbers that a grader draws while it grades an artefact (an agent's
        files). `number` is the number of the grading, from 0, if the artefact is graded several times."""
        if self.public:
            return number
        return _hashed(str(self.seed), f"grading {number}", _GRADING_BITS)


PUBLIC_SPLIT = Split(PUBLIC, SPLIT_SEED)


def numbered(seed: int) -> Split:
    """Returns the split with the seed `seed`. Such a seed is not secret: the user gave it, for example with
    `air tasks check --split-seed`."""
    return PUBLIC_SPLIT if seed == SPLIT_SEED else Split(f"seed {seed}", seed)


@dataclass(frozen=True)
class Splits:
    """Computes the seed with which each task's data are split, for all tasks from one secret text."""

    secret: str = field(repr=False)
    """The secret text, or the word `public`, which chooses the public seed for every task."""

    @property
    def name(self) -> str:
        """The name under which a record of an episode states how the data were split: `public`, or a
        fingerprint from which the secret cannot be computed."""
        if self.secret == PUBLIC:
            return PUBLIC
        return f"{_hashed(self.secret, 'fingerprint', 64):016x}"

    def of(self, task_id: str) -> Split:
        """Returns the `Split` of the task `task_id`: the seed with which the task's data are split, and its
        name for records. The task need not exist."""
        if self.secret == PUBLIC:
            return PUBLIC_SPLIT
        return Split(self.name, _hashed(self.secret, f"task {task_id}", _DATA_BITS))


def chosen(setting: str | None) -> Splits:
    """Returns the object that gives each task of a run its data split. Its secret is `setting` (the run's
    `split_seed`); if it is not given, the environment variable `AIR_SPLIT_SEED`; if that is not set, the
    secret that is stored for this installation.

    Raises UsageError if the installation's secret cannot be read or made.
    """
    return Splits(setting or os.environ.get(VARIABLE) or _of_installation())


def recorded(name: str, where: Path) -> Splits:
    """Returns the data splits that an earlier episode used, so that it can be replayed. `name` is their name
    in the episode's record: `public`, or the fingerprint of a secret. The secret can be found only if it is
    this installation's secret or the secret in `AIR_SPLIT_SEED`.

    Raises ConfigError, whose message names the record's file `where`, if `name` is the fingerprint of neither
    secret.
    """
    known = [Splits(PUBLIC)]
    if os.environ.get(VARIABLE):
        known.append(Splits(os.environ[VARIABLE]))
    if _secret_file().exists():
        known.append(Splits(_of_installation()))
    for splits in known:
        if splits.name == name:
            return splits
    raise ConfigError(
        f"was recorded on the secret split {name}, whose secret is not here, so scores would differ",
        where=str(where),
        remedy=f"set {VARIABLE} to the run's `split_seed`, or use the machine (and cache folder) that "
        "recorded it",
    )


def _of_installation() -> str:
    """Returns this installation's secret text. The first process that needs the secret creates it."""
    file = _secret_file()
    with boundary(ConfigError, f"the secret of the splits: {file}", OSError, UnicodeDecodeError):
        if not file.exists():
            with paths.locked(file.with_name(f"{_FILE}.lock")):
                if not file.exists():
                    paths.write_whole(file, f"{secrets.token_hex(32)}\n".encode(), mode=0o600)
        text = file.read_text(encoding="ascii")
    if not _SECRET.fullmatch(text):
        raise ConfigError(
            "holds no secret of 64 hex digits",
            where=str(file),
            remedy="restore it; without it, remove it, and episodes get other splits from now on",
        )
    return text.strip()


def _secret_file() -> Path:
    return paths.cache() / _FILE


def _hashed(key: str, text: str, bits: int) -> int:
    digest = hmac.digest(key.encode(), f"air {text}".encode(), hashlib.sha256)
    return int.from_bytes(digest[:8], "big") >> (64 - bits)
