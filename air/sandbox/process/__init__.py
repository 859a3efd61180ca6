"""Process boxes: boxes that are plain processes, not containers, in namespaces if the kernel allows them."""
