"""The pages of the trajectory viewer. Each page's module has a function `show(runs, run, index)`.

The function renders the page. `runs` are all runs in the viewer, `run` is the run that the user has selected,
and `index` is the index of this run's episodes.
"""
