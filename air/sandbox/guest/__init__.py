"""The programs that run inside containers and boxes (Python >= 3.8): the guest, which is air's program in
every box, and the programs of helper containers."""
