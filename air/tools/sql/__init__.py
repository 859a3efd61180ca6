"""SQL in processes with limits, and the tool `sql`."""
