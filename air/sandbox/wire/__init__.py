"""The host's side of the communication with a box: the connection to the guest (air's program in the box),
the port relay, and file copies. The host is the air process that started the box."""
