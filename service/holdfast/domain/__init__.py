"""Jobs, their events, costs and decisions, without a clock, network or database."""
