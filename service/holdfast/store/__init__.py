"""Where facts are kept: an append-only journal and what is read from it."""
