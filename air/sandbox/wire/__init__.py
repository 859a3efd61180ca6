"""The host's side of a box: the connection to the guest (air's program in the box), port relay, and file
copies."""
