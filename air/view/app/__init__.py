"""The browser version of the trajectory viewer, which shows training runs and their recorded episodes: a
Streamlit app."""
