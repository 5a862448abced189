"""Reproduction of a run from its manifest: code, packages, launch and comparison of results.

task        the manifest, and the job file to submit
source      the original commit in a directory
packages    the original packages in a Python environment
comparison  differences of this machine and of the result
git         Git commands
"""
