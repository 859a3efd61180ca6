"""Computes the reward of a proposal: a question that one model, the proposer, wrote for another model, the
executor. The reward is highest if half of the executor's answers to the question equal the most frequent
answer; a question earns little if all of them agree, or hardly any. Similar questions among the latest
proposals lower the reward, and tool calls raise it a little."""
