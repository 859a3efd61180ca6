"""The pages of the trajectory viewer. Each page's module has a function `show(runs, run, index)`.

It renders the page; `runs` are all runs, `run` is the chosen run, and `index` is the index of its episodes.
"""
