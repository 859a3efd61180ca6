"""The pages of the trajectory viewer. Each page's module has a function `show(runs, run, index)`.

The function renders the page. `runs` are all training runs, `run` is the run that the user chose, and `index`
is the index of that run's episodes.
"""
