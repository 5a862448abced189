"""Dashboard performance with 10,000 jobs, 100,000 points and a million log lines.

See README.md.

    service      the measured service and its data
    views        the measured pages and actions
"""
