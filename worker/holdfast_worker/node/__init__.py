"""The wrapper of one node (`holdfast-worker run`): torchrun, rank entry point and exit report."""
