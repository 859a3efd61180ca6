"""Serves `POST /evaluate`, which measures how hard proposed questions are: a model answers each question
several times. The model is not trained meanwhile. `air coevolve` handles the same request with its
executor."""
