"""The app's pages: each has `show(runs, run, index)`."""
