"""Protocol between worker and service: environment, reports, policies, checkpoint keys."""
