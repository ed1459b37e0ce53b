"""Where samples come from, a block at a time."""
