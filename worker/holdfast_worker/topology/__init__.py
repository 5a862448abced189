"""Topology of a run: rank identity, nodes and rendezvous."""
