"""Support for runs whose training loop belongs to a framework."""
