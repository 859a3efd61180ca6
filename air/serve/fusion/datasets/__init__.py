"""Serves SandboxFusion's datasets of programming problems. Graders test a model's completion: the text that
it wrote in answer to a problem, and that should contain a program."""
