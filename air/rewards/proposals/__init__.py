"""Computes the reward of a proposed question. It depends on how far the executor's answers to the question
agree, how new the question is among the latest proposals, and how many tool calls were made."""
