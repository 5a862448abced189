"""The write path of worker reports: group commit of HTTP reports, and spools in shared directories."""
