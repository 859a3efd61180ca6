"""The model that is trained: its weights, tokenizer, optimiser and checkpoints, and supervised training."""
