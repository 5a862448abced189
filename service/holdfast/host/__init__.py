"""Resources of the service's machine: files, disk space, descriptors, home lock."""
