"""Routes, one module per resource. A route translates and decides nothing."""
