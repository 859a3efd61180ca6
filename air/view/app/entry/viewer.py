"""Starts the viewer's Streamlit app; `streamlit run` executes this script.

Streamlit puts the script's folder first on the import path. So no other module may be in this folder: it
could hide a library with the same name.
"""

import sys

from air.view.app.app import main

main(sys.argv[1:])
