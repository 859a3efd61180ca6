"""HTTP services over air's boxes, which the existing clients of other sandboxes call: `air serve sandbox`.

`app` is the application that all protocols share, `boxes` lends boxes to requests, and each protocol has a
folder: `fusion` (SandboxFusion's), `e2b` (E2B's).
"""
