"""Plays episodes by a program that runs inside the box, such as verifiers' `bash` harness."""
