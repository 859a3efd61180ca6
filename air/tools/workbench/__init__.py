"""Files in the episode's box, as tools read, write and show them."""
