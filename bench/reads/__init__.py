"""Latency of lists and sums over 10,000 jobs and a million events. See README.md.

job_histories  the events of some two hundred different jobs
seed           a database of any number of jobs, each with one of these histories
"""
