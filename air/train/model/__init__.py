"""The model that is trained: weights, tokenizer, optimiser and checkpoints; and supervised fine-tuning
(SFT)."""
