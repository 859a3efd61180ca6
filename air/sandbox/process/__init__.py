"""Process boxes: boxes that are ordinary processes, not containers. If the kernel allows it, they have their
own namespaces."""
