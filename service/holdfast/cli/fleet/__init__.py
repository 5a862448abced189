"""Commands for several jobs at once: actions on a selection, and sweeps."""
