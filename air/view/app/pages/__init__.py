"""The app's pages. Each module has `show(runs, run, index)`, which renders its page.

`runs` are all runs, `run` is the chosen run, and `index` is the index of its episodes.
"""
