"""Episodes of air's tasks that clients of a server play: the code that `openenv` and `ors` share.

`offers` describes a task that a server offers, `catalogue` lists all of them, and `play` is one episode of a
client. `server` holds the shared state, and limits how many clients play at once.
"""
