"""Serves `POST /evaluate`, which measures how hard proposed questions are: a model, which is not trained
meanwhile, answers each question several times. `air coevolve` handles the same request with its executor."""
