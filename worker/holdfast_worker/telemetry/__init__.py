"""Reports of a worker: spool, delivery, relay, metrics, trackers and the manifest."""
