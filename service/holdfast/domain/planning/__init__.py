"""Where and when a job runs: estimates, recorded spot markets, policies, and their replay."""
