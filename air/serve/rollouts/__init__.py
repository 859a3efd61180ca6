"""The server `air serve rollouts`: plays episodes of tasks with a model. The URL of the model's server is in
the request."""
