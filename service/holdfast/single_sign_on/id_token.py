"""Validation of ID tokens: signature, issuer, audience, nonce and times.

Authlib and joserfc do the work. This module chooses what they accept: only signatures with a public key of the provider,
so that a token without a signature, or with the client's secret as its key, is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from authlib.oidc.core import CodeIDToken
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet

from holdfast.errors import IdentityProviderFailed

ALGORITHMS: Final = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA", "Ed25519"),
)
"""Accepted signatures: those with a public key."""
LEEWAY_S: Final = 60
"""Difference of clocks. A lower value refuses tokens of a provider with a wrong clock; a higher value accepts old ones."""
MAX_LIFETIME_S: Final = 24 * 3600
"""Age of an ID token. A higher value accepts old tokens of a provider with long lifetimes."""
_PUBLIC: Final = {"RSA", "EC", "OKP"}
_ERRORS: Final = (JoseError, ValueError, TypeError, KeyError, AttributeError, OverflowError)
"""Exceptions of a malformed token or key."""


class WrongSignature(Exception):
    """No key fits; the provider may have new ones."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Expected:
    """What the claims of a token have to say."""

    issuer: str
    client_id: str
    audience: str
    nonce: str | None = None
    """None: none was sent, as in a device's sign-in."""
    subject: str | None = None
    """None: any account."""
    access_token: str | None = None


def public_keys(fields: Mapping[str, Any]) -> KeySet:
    """Return the usable keys of a JWKS document; others are ignored.

    Raises:
        IdentityProviderFailed: it has none.
    """
    listed = fields.get("keys")
    keys = []
    for one in listed if isinstance(listed, list) else []:
        if (
            not isinstance(one, dict)
            or one.get("kty") not in _PUBLIC
            or one.get("use", "sig") != "sig"
        ):
            continue
        try:
            keys += KeySet.import_key_set({"keys": [one]}).keys
        except _ERRORS:
            continue
    if not keys:
        raise IdentityProviderFailed("the identity provider publishes no key for signatures")
    return KeySet(keys)


def validate(text: object, keys: KeySet, expected: Expected, now: datetime) -> Mapping[str, Any]:
    """Return the claims of a valid ID token.

    Raises:
        WrongSignature: no key fits.
        IdentityProviderFailed: the token is invalid.
    """
    try:
        token = jwt.decode(str(text), keys, algorithms=list(ALGORITHMS))
    except _ERRORS as error:
        raise WrongSignature(_reason(error)) from error
    options = {
        "iss": {"essential": True, "value": expected.issuer},
        "aud": {"essential": True, "value": expected.audience},
    }
    params = {
        "nonce": expected.nonce,
        "client_id": expected.client_id,
        "access_token": expected.access_token,
    }
    try:
        claims = CodeIDToken(token.claims, token.header, options, params)
        claims.validate(now=int(now.timestamp()), leeway=LEEWAY_S)
        is_old = now.timestamp() - float(claims["iat"]) > MAX_LIFETIME_S
    except _ERRORS as error:
        raise IdentityProviderFailed(
            f"the identity provider sent an ID token that is not valid here: {_reason(error)}"
        ) from error
    subject = claims["sub"]
    if is_old or not isinstance(subject, str) or not 0 < len(subject) <= 255:
        what = "is too old" if is_old else "names no subject"
        raise IdentityProviderFailed(f"the identity provider sent an ID token that {what}")
    if expected.subject is not None and subject != expected.subject:
        raise IdentityProviderFailed("the identity provider sent an ID token of another account")
    return dict(claims)


def _reason(error: Exception) -> str:
    return f"{getattr(error, 'description', '') or error}"[:200] or type(error).__name__
