"""A merge whose config and tokenizer are those of a hub id, read from a cache of the hub's client."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from air.train.model.shards.merge import shards_folder

COMMIT = "0" * 40
GENERATION = "generation_config.json"
MERGES = """
import sys
from air.cli.main import main

shards, folder, *names = sys.argv[1:]
for name in names:
    assert main(["merge", shards, f"{folder}/{name}", "--base", f"air-tests/{name}"]) == 0
"""


def cached(cache: Path, name: str, expected: Path) -> Path:
    """Puts a base model into a cache of the hub's client, without its generation config. Returns the model's
    folder in the cache."""
    model = cache / f"models--air-tests--{name}"
    (model / "refs").mkdir(parents=True)
    (model / "refs" / "main").write_text(COMMIT)
    ignored = shutil.ignore_patterns("*.safetensors", GENERATION)
    shutil.copytree(expected, model / "snapshots" / COMMIT, ignore=ignored)
    return model


def test_a_generation_config_of_a_hub_id_is_copied_or_missed_aloud(
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
    # A process of its own: the hub's client reads these variables once, when it is imported.
    shards = str(shards_folder(written / "prime-rl" / "shards"))
    done = subprocess.run(
        [sys.executable, "-c", MERGES, shards, str(tmp_path), *names],
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
