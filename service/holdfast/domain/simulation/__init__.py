"""The simulated spot market."""
