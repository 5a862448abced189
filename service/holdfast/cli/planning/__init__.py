"""Commands for planning: estimates from the service, and simulations without it."""
