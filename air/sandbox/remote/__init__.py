"""Runs code on a remote server that speaks SandboxFusion's protocol, instead of in a box on this machine."""
