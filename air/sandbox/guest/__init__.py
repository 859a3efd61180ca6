"""Programs that run inside containers and boxes with Python >= 3.8: the guest, which executes all requests to
a box, and the programs of helper containers."""
