"""The HTTP servers that `air serve` starts. The sandbox server (`air serve sandbox`) runs code in boxes
(isolated containers), for clients that were written for other sandbox products: SandboxFusion and E2B.

`http` has what all servers share. Each protocol of the sandbox server has a folder: `fusion` (SandboxFusion)
and `e2b` (E2B). Each of the other folders is a server of its own, such as `tools` (`air serve tools`).
"""
