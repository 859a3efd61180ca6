"""The trajectory viewer, which shows the recorded episodes and the metrics of training runs. A trajectory is
the recording of one episode, a file with one JSON object per line. There is a Streamlit app, a terminal view
and an exported HTML page. Views of whole runs read the files through an index.

Recorded text may be hostile. Every view cleans and escapes such text. No view executes the text or opens
links in it.
"""
