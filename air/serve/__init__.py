"""HTTP services. The sandbox server (`air serve sandbox`) gives clients of other sandbox products boxes of
air.

`app` is the HTTP application that all services share, and `boxes` provides requests with boxes. Each protocol
of the sandbox server has a folder: `fusion` (SandboxFusion) and `e2b` (E2B). The other folders are services
of their own, such as `tools` (`air serve tools`).
"""
