"""The server `air serve evaluate`. Its request `POST /evaluate` measures how hard proposed questions are: the
server's model answers each question several times. This server never trains its model. `air coevolve`, which
trains a proposer of questions and an executor that answers them, serves the same request with its
executor.

`files_protocol` serves the request of Agent0's curriculum training, `GET /hello`, whose questions are in a
file (`row_files`).
"""
