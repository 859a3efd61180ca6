"""The script that `streamlit run` executes.

It is alone in its folder because Streamlit puts that folder first on the import path.
"""

import sys

from air.view.app.app import main

main(sys.argv[1:])
