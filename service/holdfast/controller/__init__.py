"""The control loop: claim, observe, decide, append, act.

Only this package calls launchers to change something.
"""
