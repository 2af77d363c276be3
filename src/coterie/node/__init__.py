"""A node: one broker with its store, its users and its front doors, as one process runs it."""
