"""Runs episodes of air's tasks in which a client of the server plays the agent. An episode is one playthrough
of a task, from the first observation to the end. The servers `air serve openenv` and `air serve ors`, whose
protocols differ, share this code.

`offered_tasks` describes one task that a server offers, and `catalogue` lists all of them. `client_episode`
runs one episode of a client. `server` holds the state that the protocols share, and limits the number of
clients.
"""
