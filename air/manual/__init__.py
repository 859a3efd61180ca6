"""Episodes that a person plays: `air shell`."""
