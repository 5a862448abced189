"""Commands for files that jobs leave behind."""
