"""Request and response bodies, one module per resource. The client imports nothing else of the service."""
