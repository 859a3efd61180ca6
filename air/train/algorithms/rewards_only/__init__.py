"""The algorithms that compute advantages from nothing but the rewards of a group (the episodes of one
prompt), one file each."""
