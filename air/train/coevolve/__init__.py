"""Implements `air coevolve`, which trains two models in rounds: a proposer, which writes questions, and an
executor, which answers them."""
