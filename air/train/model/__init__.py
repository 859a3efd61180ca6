"""The policy (the model that is trained): weights, tokenizer, optimiser, checkpoints, and supervised
fine-tuning (SFT)."""
