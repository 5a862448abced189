"""Sign-in through an OpenID Connect provider, and the access that its groups give."""
