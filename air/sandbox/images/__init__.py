"""The images of tasks, given as a folder with a Dockerfile or by name: builds, pulls, lists and removes
them."""
