"""Tests of the worker: in this process where it can be, in processes that are really killed where it must be."""
