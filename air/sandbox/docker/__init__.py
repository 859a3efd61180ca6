"""The provider `docker`: boxes that are containers of Docker or Podman, their images and their snapshots."""
