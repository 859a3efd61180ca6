"""What connects harness and guest: frames, the connection, the port relay, and the box above them."""
