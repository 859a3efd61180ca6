"""The names of the files and folders in the folder of a matrix."""

from __future__ import annotations

FILE = "matrix.json"
"""The file with the settings that the results depend on."""
RUNS = "runs"
"""The folder of the trainings, which are ordinary runs of `rl`."""
CELLS = "cells"
"""The folder of the evaluations; each evaluation is in the subfolder `ROW-seedN/COLUMN`."""
JSON_FILE = "results.json"
CSV_FILE = "results.csv"
PICTURE = "heat_map.png"
