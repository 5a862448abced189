"""Which rank this process is, which nodes take part, and where the ranks meet."""
