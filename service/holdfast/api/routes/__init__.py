"""Routes, one module per resource. A route translates requests and makes no decisions."""
