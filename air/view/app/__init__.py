"""The viewer in a browser (Streamlit)."""
