"""Builds and checks the files of a release: `make release`."""
