"""The reward of a proposed question. It depends on how far the answers to the question agree, how new the
question is among the latest proposals, and how many tools were called."""
