"""Code that runs on somebody else's server instead of in a box of this machine."""
