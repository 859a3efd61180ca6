"""The service `air serve rollouts`: plays episodes of tasks with a model whose address the request gives."""
