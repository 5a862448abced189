"""Arguments, options and examples that the commands share."""
