"""Serves ORS (Open Reward Standard), a protocol for the clients `openreward` and TRL.

`protocol` has the routes, `sessions` the clients' episodes, and `events` the streamed responses.
"""
