"""Heartbeats, stall detection, the channel between nodes, hang attribution and stack dumps.

Imports no torch.
"""
