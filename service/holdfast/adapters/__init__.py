"""Former paths of programs that a service started before an upgrade still runs."""
