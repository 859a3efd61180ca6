"""Commands that play, replay, show and convert episodes."""
