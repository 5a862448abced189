"""In-process recovery: surviving ranks keep their state, and new ranks join them."""
