"""The names of the files and folders in the folder of a matrix. A matrix is a table of results: one model is
trained for each row (a list of tasks), and evaluated on the task of each column."""

from __future__ import annotations

FILE = "matrix.json"
"""The name of the file, in a matrix's folder, with the settings that the matrix's results depend on."""
RUNS = "runs"
"""The name of the folder, in a matrix's folder, that contains the trainings. Each training is an ordinary run
of `rl`."""
CELLS = "cells"
"""The name of the folder, in a matrix's folder, that contains the evaluations. Each evaluation, of one
trained policy (a row and a seed) on one task (a column), is in the subfolder `ROW-seedN/COLUMN`."""
JSON_FILE = "results.json"
CSV_FILE = "results.csv"
PICTURE = "heat_map.png"
