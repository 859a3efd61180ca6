"""Commands about recorded and played episodes."""
