"""Starts the Streamlit app; `streamlit run` executes this script.

Streamlit puts the script's folder first on the import path, so no other module may be in this folder.
"""

import sys

from air.view.app.app import main

main(sys.argv[1:])
