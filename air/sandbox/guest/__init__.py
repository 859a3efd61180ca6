"""The guest, which is air's program in every box, and the programs of helper containers (Python >= 3.8)."""
