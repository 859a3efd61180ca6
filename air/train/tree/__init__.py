"""The token tree: the tokens of a training step as prefix trees, in which shared tokens are trained once."""
