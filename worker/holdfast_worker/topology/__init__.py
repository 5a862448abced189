"""Topology of a run: nodes, rank identity, and where ranks meet (`rendezvous`)."""
