"""What the service uses of the machine it runs on: folders, files of others, disk space, file descriptors, the lock of its home."""
