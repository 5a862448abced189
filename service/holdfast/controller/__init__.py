"""The control loop: claim, observe, decide, append, act. Only this package calls a launcher to change something."""
