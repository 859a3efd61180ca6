"""Pure functions that turn the scores of an episode into its reward. They know nothing of boxes or tasks."""
