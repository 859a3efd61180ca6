"""Trains a proposer of questions and an executor that answers them, in rounds: `air coevolve`."""
