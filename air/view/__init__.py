"""The trajectory viewer: an index of runs, a Streamlit app, a terminal view, and an exported HTML page.

Recorded text may be hostile. Every view cleans and escapes such text. No view executes the text or opens
links in it.
"""
