"""Pure functions that compute an episode's reward from its scores. They use neither boxes nor tasks."""
