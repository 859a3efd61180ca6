"""Runs code on a remote server instead of in a box of this machine."""
