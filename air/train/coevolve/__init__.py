"""Implements `air coevolve`: trains a proposer, a model that writes questions, and an executor, a model that
answers them, in rounds."""
