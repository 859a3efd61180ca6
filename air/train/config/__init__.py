"""Run files: their schema, options and command-line overrides."""
