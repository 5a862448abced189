"""Resumable data loaders: sampling, sample order, position and resume plan."""
