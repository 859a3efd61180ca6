"""Serves OpenEnv's protocol, so that OpenEnv's own unmodified clients can play air's tasks. `protocol` has
the HTTP routes, `session` handles one client's WebSocket, and `messages` builds and checks the messages on
it."""
