"""The host's side of a box: the connection to the guest (our program in the box), port relay, file copies."""
