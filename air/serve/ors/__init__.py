"""ORS, the Open Reward Standard, for the clients of `openreward` and TRL.

`protocol` has the routes, `sessions` the clients' episodes, `events` the streamed answers.
"""
