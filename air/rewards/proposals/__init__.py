"""Computes the reward of a proposal: a question that one model, the proposer, wrote for another model, the
executor. The reward depends on how far the executor's answers to the question agree, how new the question is
among the latest proposals, and how many tool calls were made."""
