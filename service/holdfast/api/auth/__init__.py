"""Authentication, the route policy table, and access to open streams."""
