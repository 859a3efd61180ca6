"""Serves the protocol ORS (Open Reward Standard), so that its clients `openreward` and TRL can play air's
tasks.

`protocol` has the HTTP routes, `sessions` holds the clients' episodes, and `events` streams responses.
"""
