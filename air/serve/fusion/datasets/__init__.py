"""SandboxFusion's datasets: problems, and graders that run a model's completion against their tests."""
