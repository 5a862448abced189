"""Demonstration: the real service over a simulated cloud, with 30 days of generated history.

clock      a time that is set and then advances by itself
market     node types and prices
jobs       ordinary jobs and scenarios
sweeps     sweeps of jobs
users      users, projects, budgets and quotas
launcher   a simulated cloud for each job on that market
logs       output of the programs
generator  user actions through the API and reconciliation at simulated times
server     a service with this history in its own home directory
"""

from holdfast.demo.history.server import home, with_history

__all__ = ["home", "with_history"]
