"""Serves `POST /evaluate`, which says how hard proposed questions are: a model that is not trained answers
each question several times. `air coevolve` uses the same request."""
