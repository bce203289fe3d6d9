"""Memory for object bytes: budget, buffers, blocks."""
