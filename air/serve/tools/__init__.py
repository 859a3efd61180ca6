"""`air serve tools`: tools for the clients of verl-tool's `POST /get_observation`, and of OpenAI's chat
completions, with a loop of tool calls.

`sessions` opens tools with a box of their own. `trajectories` keeps sessions by the client's ids for
`observations`; a chat (`chat`, `chat_loop`) has a session until its answer.
"""
