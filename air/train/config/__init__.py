"""The schema of run files, and the code that merges several run files and command-line flags into one."""
