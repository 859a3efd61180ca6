"""Text, figures and HTML for every view."""
