"""Collectives and everything that needs all ranks: process group, step vote, sharding, desync detection, DDP warm-up."""
