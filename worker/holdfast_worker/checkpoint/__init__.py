"""Save and restore: checkpointer, staging, writer, commit, fencing, restore and schedule."""
