"""Code that all worlds on remote servers (`agentgym`, `openenv` and `ors`) share: URLs with settings,
conversion of actions and observations, and attribution of failures to the agent or the server."""
