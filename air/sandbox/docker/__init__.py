"""Boxes that are containers, and their container engine (Docker or Podman), images and snapshots."""
