"""Starts the Streamlit app; `streamlit run` executes this script.

Streamlit puts the script's folder first on the import path. Therefore this folder holds no other module,
because such a module could hide an installed package of the same name.
"""

import sys

from air.view.app.app import main

main(sys.argv[1:])
