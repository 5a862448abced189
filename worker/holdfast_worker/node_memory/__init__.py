"""Objects in the memory of nodes, which outlive the ranks that put them there. No torch."""
