"""The trajectory viewer: an index of runs, a Streamlit app, a terminal view, and an exported HTML page.

Recorded text comes from an agent and might be hostile. Therefore every view cleans the text
(`air.view.render.clean`) and escapes it for HTML or the terminal. No view executes recorded text or opens an
address in it.
"""
