"""The write path of worker reports: group commit of HTTP reports, and a reader of spools on shared folders."""
