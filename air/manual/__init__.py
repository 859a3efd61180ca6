"""Plays episodes in which a person or a script replies in place of a model, for the commands `air shell` and
`air demos`."""
