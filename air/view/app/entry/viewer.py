"""Starts the Streamlit app; `streamlit run` executes this script.

Streamlit puts the script's folder first on the import path, so the folder holds no other module, which could
hide a package of the same name.
"""

import sys

from air.view.app.app import main

main(sys.argv[1:])
