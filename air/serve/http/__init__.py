"""What all servers of `air serve` share: the application that listens and checks the token, limits on
connections and request bodies, the log, metrics, and boxes (containers) in which requests run code."""
