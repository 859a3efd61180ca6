"""OpenEnv's protocol, for its own unmodified clients. `protocol` has the routes, `session` handles one
client's WebSocket, and `messages` has the messages."""
