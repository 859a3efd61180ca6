"""Episodes that a program in the box plays, such as verifiers' `bash` harness."""
