"""Routes of single sign-on."""
