"""Routes for several jobs at once: sweeps."""
