"""The real SkyPilot, offline: an AWS whose instances are network namespaces of this machine. See README.md."""
