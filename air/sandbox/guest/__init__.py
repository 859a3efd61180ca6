"""Programs that run inside of boxes and other containers, with Python >= 3.8: the guest, which executes all
requests to a box, and the programs of helper containers, which store snapshots or copy Python."""
