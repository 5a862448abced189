"""The write path of worker reports: group commit, and spools in shared directories."""
