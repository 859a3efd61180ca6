"""The trajectory viewer: an index of runs, a Streamlit app, a terminal view, and an exported HTML page.

Recorded text may be hostile. Every view cleans and escapes it. No view executes it or opens its links.
"""
