"""The service of rollouts: plays episodes of tasks with a model that a request names."""
