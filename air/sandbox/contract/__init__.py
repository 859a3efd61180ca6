"""What boxes of each provider (`docker`, `process`) promise: `Box`, settings, owners, network rules."""
