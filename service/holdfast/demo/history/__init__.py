"""A service to look around in: the real one, over a simulated cloud, with 30 days of history that a seed has made.

clock      time that is told where to be, and then goes on by itself
market     nodes that can be had where, and what they cost: a price catalog without a cloud
parts      what a job is made of: who submits what, when, and in which weather it trains
stories    all jobs: many that are like others, and some that show what else may happen
cast       the people, their projects and budgets
sky        the launcher: a simulated cloud for each job, on that market
diary      what programs printed
play       the history: people act through the API, and the reconciler looks, at moments that a clock is moved to
opening    a service with this history, in a home folder of its own
"""

from holdfast.demo.history.server import home, opened

__all__ = ["home", "opened"]
