"""Data sets: where their files come from, and how they are read."""
