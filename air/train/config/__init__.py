"""Defines the keys of run files (TOML), and merges run files and command-line flags into one config."""
