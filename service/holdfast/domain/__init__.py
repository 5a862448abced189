"""Pure: what a job is, what happened to it, what it costs, what to do next. No clock, no network, no database."""
