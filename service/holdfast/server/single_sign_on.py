"""The identity provider of the settings, with a sentence for each wrong setting."""

from __future__ import annotations

from datetime import timedelta
from typing import Final
from urllib.parse import urlsplit

from sqlalchemy import Engine

from holdfast.domain.access.group_roles import GroupRoles
from holdfast.errors import BadRequest
from holdfast.ports import Clock
from holdfast.settings import Settings
from holdfast.single_sign_on.connection import ProviderConnection, is_loopback, is_web_address
from holdfast.single_sign_on.flows import SingleSignOn
from holdfast.single_sign_on.openid_provider import OpenIdProvider, ProviderSettings
from holdfast.store.identity.service_tokens import ServiceTokens
from holdfast.store.identity.sign_ins import SignIns
from holdfast.store.secrets import SecretBox

PREFIX: Final = "HOLDFAST_OIDC_"


def open_single_sign_on(
    settings: Settings, engine: Engine, clock: Clock, tokens: ServiceTokens, secret: bytes
) -> SingleSignOn | None:
    """Return sign-in through the provider of the settings; None without one.

    It sends no request yet.

    Raises:
        BadRequest: a setting cannot work.
    """
    if settings.oidc_issuer is None:
        for name in ("client_id", "client_secret", "client_secret_file", "audience", "groups"):
            if getattr(settings, f"oidc_{name}") is not None:
                raise BadRequest(
                    f"{PREFIX}{name.upper()} has no effect without {PREFIX}ISSUER; set the address of the identity provider there"
                )
        return None
    provider = provider_settings(settings)
    group_roles = GroupRoles.parse(settings.oidc_groups or "")
    grace = timedelta(hours=settings.oidc_grace_hours)
    return SingleSignOn(
        issuer=provider.issuer,
        provider=OpenIdProvider(provider, clock, ProviderConnection(provider.issuer)),
        sign_ins=SignIns(
            engine, clock, tokens.access_tokens, secret, group_roles=group_roles, grace=grace
        ),
        box=SecretBox(secret, "single-sign-on", owner="purpose"),
        clock=clock,
    )


def provider_settings(settings: Settings) -> ProviderSettings:
    """Return the checked settings of the provider.

    Raises:
        BadRequest: a setting is missing or cannot work.
    """
    issuer = settings.oidc_issuer or ""
    if not is_web_address(issuer) or urlsplit(issuer).query or urlsplit(issuer).fragment:
        raise BadRequest(
            f"{PREFIX}ISSUER={issuer!r}: is not the address of an identity provider, such as https://login.example.com/realms/team"
        )
    if urlsplit(issuer).scheme != "https" and not is_loopback(issuer):
        raise BadRequest(
            f"{PREFIX}ISSUER={issuer!r}: has to begin with https://, except on this machine"
        )
    if not settings.oidc_client_id:
        raise BadRequest(
            f"{PREFIX}CLIENT_ID is missing; {PREFIX}ISSUER needs the id that the provider gave to this service"
        )
    scopes = settings.oidc_scopes.split()
    if "openid" not in scopes:
        raise BadRequest(f"{PREFIX}SCOPES={settings.oidc_scopes!r}: has to contain openid")
    if not settings.oidc_groups_claim:
        raise BadRequest(f"{PREFIX}GROUPS_CLAIM is empty; name the claim with the groups of a user")
    return ProviderSettings(
        issuer=issuer,
        client_id=_plain("CLIENT_ID", settings.oidc_client_id),
        client_secret=_client_secret(settings),
        audience=settings.oidc_audience or settings.oidc_client_id,
        groups_claim=settings.oidc_groups_claim,
        scopes=" ".join(scopes),
    )


def _client_secret(settings: Settings) -> str | None:
    given, file = settings.oidc_client_secret, settings.oidc_client_secret_file
    if given is not None and file is not None:
        raise BadRequest(
            f"{PREFIX}CLIENT_SECRET and {PREFIX}CLIENT_SECRET_FILE are both set; keep one"
        )
    if file is None:
        return _plain("CLIENT_SECRET", given.get_secret_value()) if given is not None else None
    try:
        text = file.read_text().strip()
    except (OSError, UnicodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise BadRequest(
            f"{PREFIX}CLIENT_SECRET_FILE={str(file)!r}: cannot be read ({why})"
        ) from error
    return _plain("CLIENT_SECRET_FILE", text)


def _plain(name: str, text: str) -> str:
    """Return a credential without the characters that a copy may have added."""
    if not text or not text.isascii() or not text.isprintable() or text != text.strip():
        raise BadRequest(
            f"{PREFIX}{name} is empty, or has spaces or other characters that a credential cannot have"
        )
    return text
