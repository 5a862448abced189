"""Reports of a worker: spool, delivery, relay through the checkpoint store, metrics, trackers and the manifest."""
