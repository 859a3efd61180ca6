"""E2B's interface to sandboxes, for its stock clients `e2b` and `e2b-code-interpreter`.

`protocol` finds the sandbox and the service that a request is for. `control` and `sandboxes` are the control
plane. `envd` answers in place of envd, E2B's own program in a sandbox. `interpreter` is the code interpreter,
and `ports` passes requests on to programs in the box. `programs` has air's programs that run in the box.
"""
