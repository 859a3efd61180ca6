"""TRL's `GRPOTrainer` trains on a research task in boxes, by ORS and by OpenEnv: `make test-trl`."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.docker.serve.serving import serving

pytestmark = pytest.mark.trl  # needs Docker, too: not marked, since only `make test-trl` plays it
HERE = Path(__file__).parent
DOCS = HERE.parents[1] / "docs" / "openenv.md"
SECONDS = 1200


@pytest.mark.parametrize("kind", ["ors", "openenv"])
def test_two_steps(kind: str, tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL)
    block = next(block for block in blocks if "class Research" in block)
    code = tmp_path / "research.py"
    code.write_text(block)
    python = os.environ["AIR_TRL_PYTHON"]
    with serving("titanic", "--max-sessions", "3", what=kind) as served:
        ran = subprocess.run(
            [python, str(HERE / "trl_training.py"), kind, served.url, str(code)],
            capture_output=True,
            text=True,
            timeout=SECONDS,
            env=os.environ | {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""},
        )
        assert ran.returncode == 0, ran.stderr
        seen = json.loads(ran.stdout.split("RESULT ")[1])
    assert len(seen["rewards"]) == 2
    assert min(seen["rewards"]) > 0.1  # half of the episodes come near the target
    assert min(seen["spreads"]) > 0.1  # the others do not
    assert seen["failures"] == [0.0, 0.0]
    assert seen["moved"] > 0
