"""The HTTP face: routes translate, they do not decide."""
