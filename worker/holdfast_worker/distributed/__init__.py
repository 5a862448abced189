"""Collectives over all ranks: process group, step vote, sharding, desync, DDP warm-up."""
