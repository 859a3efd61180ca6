"""Answer checkers: functions that compute an episode's reward from its final answer and the row's fields."""
