"""The provider `docker`: boxes that are containers of Docker or Podman, with their images and snapshots."""
