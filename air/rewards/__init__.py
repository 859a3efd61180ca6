"""Computes an episode's reward: from the scores of its validates, from its final answer (`answers`), or for a
question that a proposer wrote (`proposals`). No module of this package starts a box or loads a task."""
