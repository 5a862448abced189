"""Resources of the service's machine: directories, untrusted files, disk space, descriptors, home lock."""
