"""The policy: model, tokenizer, optimizer, checkpoints and warm start."""
