"""Process boxes: boxes that are groups of ordinary processes, not containers. If the kernel allows it, each
box has Linux namespaces of its own."""
