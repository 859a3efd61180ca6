"""OpenEnv's protocol, for its stock clients. `protocol` has the routes, `session` one client's WebSocket."""
