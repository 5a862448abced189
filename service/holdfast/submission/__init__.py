"""Use cases shared by routes: validate, render, record, copy and retry jobs.

Imports no FastAPI.
"""
