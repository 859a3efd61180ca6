"""The trajectory viewer in a browser: a Streamlit app."""
