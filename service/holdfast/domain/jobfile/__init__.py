"""A job file: parsing, validation, defaults, limits, lint and spot safety."""
