"""The trajectory viewer: an index of runs, a Streamlit app, a terminal view, and one self-contained page.

Whatever a run recorded was written by an agent and is hostile: every text goes through `clean` and is
escaped for where it is shown. Nothing here executes, loads or follows what it shows.
"""
