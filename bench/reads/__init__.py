"""How long lists and sums take over ten thousand jobs and a million events. See README.md.

lives        what happened to the jobs: some two hundred stories that differ
seed         a database with as many jobs as are wanted, each of which has one of these stories
"""
