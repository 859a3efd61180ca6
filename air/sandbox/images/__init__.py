"""The container images of tasks: builds them from a folder with a Dockerfile or pulls them by name, lists
them, and removes those that are no longer used."""
