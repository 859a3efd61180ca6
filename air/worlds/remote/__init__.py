"""The common parts of worlds on other machines: addresses with settings, and the texts of episodes."""
