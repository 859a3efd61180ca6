"""Hub ids without a network: a merge whose config and tokenizer are in a cache of the hub's client, and a
model that is not there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from air.train.model.shards.merge import shards_folder

COMMIT = "0" * 40
GENERATION = "generation_config.json"
PROGRAM = """
import sys
from air.cli.main import main
from air.errors import MissingError
from air.train.model import policy

shards, folder, *names = sys.argv[1:]
for name in names:
    assert main(["merge", shards, f"{folder}/{name}", "--base", f"air-tests/{name}"]) == 0
try:
    policy.load("air-tests/there-is-no-such-model")
except MissingError as error:
    print(error)
"""
"""One process for all that the hub's client reads once, when it is imported: it imports for seconds."""


def cached(cache: Path, name: str, expected: Path) -> Path:
    """Puts a base model into a cache of the hub's client, without its generation config. Returns the model's
    folder in the cache."""
    model = cache / f"models--air-tests--{name}"
    (model / "refs").mkdir(parents=True)
    (model / "refs" / "main").write_text(COMMIT)
    ignored = shutil.ignore_patterns("*.safetensors", GENERATION)
    shutil.copytree(expected, model / "snapshots" / COMMIT, ignore=ignored)
    return model


@pytest.mark.slow
def test_what_a_hub_id_has_is_copied_and_what_it_lacks_is_said(
    written: Path, tmp_path: Path
) -> None:
    names = ("unknown", "odd", "good", "absent")
    expected = written / "prime-rl" / "expected"
    _, odd, good, absent = (cached(tmp_path / "cache", name, expected) for name in names)
    texts = {
        "odd": '{"temperature": 0.5, "top_k": "a key that no version of transformers reads"',
        "good": '{"temperature":0.5,  "do_sample":true, "eos_token_id":[1, 2]}\n',
    }
    (odd / "snapshots" / COMMIT / GENERATION).write_text(texts["odd"])
    (good / "snapshots" / COMMIT / GENERATION).write_text(texts["good"])
    (absent / ".no_exist" / COMMIT).mkdir(parents=True)  # how the client notes that there is none
    (absent / ".no_exist" / COMMIT / GENERATION).touch()
    shards = str(shards_folder(written / "prime-rl" / "shards"))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, shards, str(tmp_path), *names],
        env=os.environ | {"HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    files = {name: tmp_path / name / GENERATION for name in names}
    assert {name: file.read_text() for name, file in files.items() if file.exists()} == texts
    (warning,) = (line for line in done.stderr.splitlines() if line.startswith("warning: "))
    assert warning.startswith(
        "warning: air-tests/unknown: the generation config cannot be fetched: "
    )
    lacking = done.stdout.splitlines()[-1]
    assert lacking.startswith("air-tests/there-is-no-such-model: no such")
    assert lacking.endswith("switched off (HF_HUB_OFFLINE): unset it, or give a local folder")
