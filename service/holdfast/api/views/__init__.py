"""Domain objects as schemas."""
