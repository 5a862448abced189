"""Use cases that routes share: check, render and record a job; copy and retry one. Imports no FastAPI."""
