"""`make bench-harbor`: trials of Harbor's tasks in air and in Harbor."""
