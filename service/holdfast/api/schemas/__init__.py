"""Request and response bodies, one module per resource.

The client imports only these and its errors from the service.
"""
