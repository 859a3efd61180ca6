"""Defines the keys of run files (TOML files with the settings of a training), and merges run files and
command-line flags into one config object."""
