"""Measurements, one folder for each subject. Tests never measure time; these programs do."""
