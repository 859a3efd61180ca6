"""The pages of the trajectory viewer's app. The module of each page has a function `show(runs, run, index)`,
which renders the page.

`runs` are all runs in the viewer, `run` is the run that the user has selected, and `index` is the index of
this run's episodes.
"""
