"""Images that tasks bring along, as folders with a Dockerfile or by name: built, pulled, listed, removed."""
