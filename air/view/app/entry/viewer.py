"""What `streamlit run` runs; alone in its folder, since Streamlit puts that folder before all others on
the path of imports."""

import sys

from air.view.app.app import main

main(sys.argv[1:])
