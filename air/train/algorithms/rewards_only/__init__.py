"""The algorithms that need nothing but rewards, one file each."""
