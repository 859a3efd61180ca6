"""Episodes of air's tasks, played by the clients of a server: what `openenv` and `ors` share.

`offers` knows the tasks that a server offers, `play` is one episode of a client, and `plays` holds all that
are open, at most as many as the server allows.
"""
