"""`make coevolve`: two small policies are trained on each other."""
