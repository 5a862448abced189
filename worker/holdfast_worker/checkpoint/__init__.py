"""Save and restore: checkpointer, staging, writer, metadata, commit, fencing, restore, schedule."""
