"""Routes of files that jobs leave behind."""
