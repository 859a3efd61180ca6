"""Serves SandboxFusion's datasets: programming problems, and graders that test a model's completion, the text
that should contain a program."""
