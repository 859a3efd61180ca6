"""air: train language-model agents, by reinforcement learning, to do machine-learning research."""
