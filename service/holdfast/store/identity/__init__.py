"""Users, access tokens, service tokens and sessions."""
