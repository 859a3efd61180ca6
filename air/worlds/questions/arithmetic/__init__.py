"""Word problems with one integer as the answer, after GSM8K."""
