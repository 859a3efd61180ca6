"""The host's side of the communication with a box, an isolated place for commands such as a container. The
host is the air process that started the box; the other side is the guest, air's program inside the box.

`connection` exchanges messages with the guest, `command_streams` passes the input and output of commands,
`port_relay` relays network connections, and `file_transfer` copies files. `guest_box` builds the class of all
boxes from them.
"""
