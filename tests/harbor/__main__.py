"""Writes the small Harbor tasks: `python -m tests.harbor DIR`. The flawed ones go to DIR/flawed."""

import sys
from pathlib import Path

from tests.harbor.features import FEATURES
from tests.harbor.flaws import CLEAN_TWINS, FLAWED
from tests.harbor.folders import write
from tests.harbor.languages import LANGUAGES

root = Path(sys.argv[1])
clean = write((*LANGUAGES, *FEATURES, *CLEAN_TWINS), root / "clean")
flawed = write(FLAWED, root / "flawed")
print(
    f"{len(clean)} sound tasks in {root / 'clean'}, {len(flawed)} flawed ones in {root / 'flawed'}"
)
