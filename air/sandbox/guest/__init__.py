"""The guest, the program that runs inside every box and executes requests; also programs of helpers.

Standard library only, Python >= 3.8.
"""
