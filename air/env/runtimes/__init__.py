"""The verifiers runtimes over our boxes: lent by the environment, or owned by verifiers."""
