"""Serves `POST /evaluate`: a frozen model answers each proposed question k times, as in `air coevolve`."""
