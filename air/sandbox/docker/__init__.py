"""Boxes that are containers of Docker or Podman (`BoxSpec.provider` is `docker`), with their images and
snapshots."""
