"""A run once more, from what is known of it: its code, its packages, its launch, and whether it comes to the same result.

evidence      the manifest of a run: in a file, in a bundle, or of a job
code          its commit in a folder of its own
packages      what it had installed, in a Python of its own
task          the job file to be submitted
surroundings  what is other on this machine
verdict       whether it came to the same
"""
