"""The program inside a box. Standard library only, Python >= 3.8."""
