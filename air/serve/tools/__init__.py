"""The server `air serve tools`, which runs tools for clients. There are two kinds of clients: those of
verl-tool's `POST /get_observation`, and those of OpenAI's chat completions, for whom a model calls the tools
in a loop.

`sessions` opens the tools, with a box (a container or process) if they need one. `observations` handles
`/get_observation`; for it, `trajectories` keeps the tools open between the requests of one trajectory (a
client's sequence of tool calls). `chat` and `chat_loop` handle chats, whose tools are open until the final
answer.
"""
