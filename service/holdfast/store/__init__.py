"""The database: an append-only event log and the queries over it."""
