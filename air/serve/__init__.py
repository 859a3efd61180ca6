"""The HTTP servers that `air serve` starts. The sandbox server (`air serve sandbox`) lets clients of other
sandbox products, SandboxFusion and E2B, use air's boxes.

`http` has what all servers share. Each protocol of the sandbox server has a folder: `fusion` (SandboxFusion)
and `e2b` (E2B). Each of the other folders is a server of its own, such as `tools` (`air serve tools`).
"""
