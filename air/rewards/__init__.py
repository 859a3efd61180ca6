"""Computes an episode's reward: from the scores of its graded attempts (`delta`, `terms`), from its final
answer (`answers`), or, for a question that a model wrote, from the answers of another model (`proposals`). No
module of this package starts a box (a sandbox) or loads a task."""
