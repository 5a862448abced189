"""The state machine of a job: events to state, observation to decision, guards and commands."""
