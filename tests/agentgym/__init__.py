"""Tests of AgentGym's real servers, for `make test-agentgym`."""
