"""The policy (the model that is trained): model, tokenizer, optimiser, checkpoints, supervised training."""
