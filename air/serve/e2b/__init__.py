"""Serves E2B's HTTP interface to sandboxes, so that E2B's own unmodified clients `e2b` and
`e2b-code-interpreter` can use air's boxes (containers) as sandboxes.

`protocol` decides which sandbox and which service a request is for. `control` and `sandboxes` implement the
control plane, the API that creates and manages sandboxes. `envd` implements the interface of envd, the
program that E2B runs in each sandbox. `interpreter` is the code interpreter, and `ports` forwards requests to
programs that listen on ports of the box. `programs` contains air's helper programs, which run in the box.
"""
