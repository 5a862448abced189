"""A proof for one's own script: some steps of it left alone, and the same steps with nodes taken in the middle, compared.

trial      the job file of such a short run
waiting    a job, until it has come somewhere
running    both runs, one after the other
testimony  what their logs say, step by step
"""
