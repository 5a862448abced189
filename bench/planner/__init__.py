"""Speed of the planner's replays, and the estimate of its constants.

See README.md.

    speed        job-hours for each second of CPU time
    outlook      CPU time of forecasts of a job
    zones        costs in zones of three regions, as shares of the least cost
    estimate     usual chances of a change, from directories of recordings
"""
