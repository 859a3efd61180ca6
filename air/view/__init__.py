"""The trajectory viewer: an index of runs, a Streamlit app, a terminal view, and an exported HTML page.

Recorded text may be hostile: every view cleans and escapes it, and none executes it or opens its links.
"""
