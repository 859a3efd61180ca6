"""The embedded engine: policy, inference server, rollout loop, loss, optimiser and checkpoints.

One process, one model. Importing this package loads nothing; its modules load torch.
"""
