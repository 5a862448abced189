"""The wrapper of a node (`holdfast-worker run`): torchrun, rank entry point, exit report."""
