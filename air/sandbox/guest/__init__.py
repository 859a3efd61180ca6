"""The guest, which is air's program in every box, and the programs that run in helper containers.

Standard library only, Python >= 3.8.
"""
