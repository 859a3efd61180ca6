"""SandboxFusion's datasets: programming problems, and graders that run a model's completion against a
problem's tests."""
