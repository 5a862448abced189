"""Seals: what may be stored of a secret, and opened by this service alone."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Mapping
from typing import Any

from cryptography.fernet import Fernet, InvalidToken


class Seal:
    """Fernet (AES-128-CBC with HMAC-SHA-256) under a key that is derived from the service's own secret for one purpose."""

    def __init__(self, secret: bytes, purpose: str, owner: str = "owner") -> None:
        """`owner` is the member of a sealed letter that says whose it is."""
        self._owner = owner
        key = hmac.new(secret, f"{purpose}/seal/1".encode(), hashlib.sha256).digest()
        self._fernet = Fernet(base64.urlsafe_b64encode(key))
        self._marking = hmac.new(secret, f"{purpose}/mark/1".encode(), hashlib.sha256).digest()

    def close(self, owner: str, values: Mapping[str, Any]) -> str:
        """The values in a form that may be stored. A row that somebody moved to another owner opens nothing."""
        letter = json.dumps({self._owner: owner, "values": dict(values)})
        return self._fernet.encrypt(letter.encode()).decode()

    def open(self, owner: str, sealed: str) -> dict[str, Any] | None:
        """The values; None if they were sealed under another secret, or for another owner."""
        try:
            letter = json.loads(self._fernet.decrypt(sealed.encode()))
        except InvalidToken:
            return None
        values: dict[str, Any] = letter["values"]
        return values if letter[self._owner] == owner else None

    def mark(self, text: str) -> str:
        """The same 64 characters for the same text, which tell nothing about it to who has the database alone."""
        return hmac.new(self._marking, text.encode(), hashlib.sha256).hexdigest()
