"""One file per data set: where its files come from, and how they are read."""
