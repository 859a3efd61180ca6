"""The server `air serve tools`, which runs air's tools (such as a Python interpreter) over HTTP. It offers
two interfaces. For `POST /get_observation` (the protocol of verl-tool, a training framework), the client
sends replies of its own model, and gets the results of the tool calls in them. For OpenAI's chat completions
and completions of a text, the server itself lets a model call the tools in a loop, and returns the final
answer or the whole text.

`sessions` opens the tools, with a box (a container or process) if they need one. `observations` handles
`/get_observation`; for it, `trajectories` keeps the tools open between the requests of one trajectory (a
client's sequence of tool calls). `chat` and `chat_loop` handle chats, and `completions` and `completion_loop`
completions of a text; the tools are open until the end of the answer. `openai_protocol` has what both have in
common, and `model_endpoint` sends their requests to the model.
"""
