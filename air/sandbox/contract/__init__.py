"""The contract of boxes: what every provider (`docker`, `process`) promises about boxes, settings and
owners."""
