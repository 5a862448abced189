"""Rollups and the queries over them: bills, costs, preemptions and statistics."""
