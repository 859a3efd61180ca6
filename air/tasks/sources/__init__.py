"""Where tasks come from: folders of our own format, and checkouts of other systems."""
