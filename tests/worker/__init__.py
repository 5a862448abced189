"""Tests of the worker, in this process where possible, and in processes that are killed."""
