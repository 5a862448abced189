"""Whether the dashboard stays smooth over ten thousand jobs, a hundred thousand points and a million lines. See README.md.

house        the service that is looked at, with all of that in it
views        what is gone to, and what is done there
"""
