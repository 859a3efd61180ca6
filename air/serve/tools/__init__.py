"""Runs tools for clients (`air serve tools`): for clients of verl-tool's `POST /get_observation`, and for
clients of OpenAI's chat completions, whose model calls the tools in a loop.

`sessions` opens the tools, with a box if they need one. `observations` handles `/get_observation`; for it,
`trajectories` keeps a session for each trajectory id of a client. `chat` and `chat_loop` handle chats, each
of which has a session until its answer.
"""
