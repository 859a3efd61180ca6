"""The trajectory viewer: an index of runs, a Streamlit app, a terminal view, and an exported HTML page.

Recorded text comes from an agent and may be hostile: every view cleans it (`air.view.render.clean`) and
escapes it for the place where it is shown. No view executes, loads or follows recorded text.
"""
