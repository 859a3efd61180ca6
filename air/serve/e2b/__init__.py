"""E2B's interface to sandboxes, for its stock clients `e2b` and `e2b-code-interpreter`.

`protocol` tells whom a request is for. The control plane is `control` over `sandboxes`; `envd` has what
E2B's program in a sandbox would answer, `interpreter` the code interpreter, `ports` what programs in the box
answer. `programs` has the programs of ours that run in the box.
"""
