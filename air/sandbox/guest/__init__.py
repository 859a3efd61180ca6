"""The guest, which is the program that runs inside every box, and the programs of helper containers.

Standard library only, Python >= 3.8.
"""
