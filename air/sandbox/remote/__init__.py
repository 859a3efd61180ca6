"""Runs code on a remote server, instead of in a box (isolated place for commands) on this machine. The server
speaks the HTTP protocol of SandboxFusion, a server for running programs."""
