"""The tasks with questions about databases that the agent answers with SQL queries, modelled on the benchmark
BIRD (questions in words about SQL databases)."""
