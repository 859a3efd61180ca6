"""The training engine `prime-rl`, an external program: air checks its run file, assigns GPUs, estimates the
duration of the run, and starts prime-rl."""
