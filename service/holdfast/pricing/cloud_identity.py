"""Access tokens of Google Cloud and Azure, from the credentials that their own tools read.

Google: the file of `GOOGLE_APPLICATION_CREDENTIALS`, a service account's key or what `gcloud auth application-default login` has written; without it, the service
account of the machine. Azure: the client secret of an application in `AZURE_*`; without it, the managed identity of the machine.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from holdfast.ports import Clock
from holdfast.pricing.cloud_http import CloudHttp
from holdfast.pricing.provider_cache import ProviderUnavailable

Environment: TypeAlias = Callable[[str], str | None]
"""Returns the value of an environment variable; None if it is not set."""

METADATA_URL: Final = "http://169.254.169.254"
GOOGLE_SCOPE: Final = "https://www.googleapis.com/auth/compute.readonly"
GOOGLE_METADATA: Final = {"Metadata-Flavor": "Google"}
ASSERTION_S: Final = 600
"""Validity of a signed request for a token. A lower value fails with clocks that differ; Google refuses more than an hour."""
AZURE_LOGIN_URL: Final = "https://login.microsoftonline.com"
AZURE_RESOURCE: Final = "https://management.azure.com/"


@dataclass(frozen=True)
class GoogleIdentity:
    """The service account or user of this service at Google Cloud."""

    clock: Clock
    http: CloudHttp
    machine: CloudHttp
    """HTTP to the metadata service of the machine."""
    environment: Environment
    metadata_url: str = METADATA_URL

    def project(self) -> str:
        """Return the project that is asked, and whose limits count.

        Raises:
            ProviderUnavailable: it is unknown.
        """
        if named := self.environment("GOOGLE_CLOUD_PROJECT"):
            return named
        if key := self._key():
            found = key.get("project_id") or key.get("quota_project_id")
            if not found:
                raise ProviderUnavailable("GOOGLE_CLOUD_PROJECT is not set", is_quiet=True)
            return str(found)
        url = f"{self.metadata_url}/computeMetadata/v1/project/project-id"
        return self.machine.text(url, GOOGLE_METADATA)

    def token(self) -> str:
        """Request an access token.

        Raises:
            ProviderUnavailable: there are no credentials, or they are refused.
        """
        key = self._key()
        if key is None:
            path = "/computeMetadata/v1/instance/service-accounts/default/token"
            answer = self.machine.json(f"{self.metadata_url}{path}", GOOGLE_METADATA)
        else:
            answer = self.http.json(_text(key, "token_uri"), form=self._grant(key))
        return _text(answer, "access_token")

    def _key(self) -> Mapping[str, Any] | None:
        """The content of the credentials file; None without one."""
        path = self.environment("GOOGLE_APPLICATION_CREDENTIALS")
        if not path:
            return None
        try:
            key = json.loads(Path(path).expanduser().read_bytes())
        except (OSError, ValueError) as error:
            raise ProviderUnavailable(
                f"GOOGLE_APPLICATION_CREDENTIALS={path} cannot be read ({type(error).__name__})"
            ) from error
        if not isinstance(key, dict):
            raise ProviderUnavailable(f"GOOGLE_APPLICATION_CREDENTIALS={path} has no credentials")
        if key.get("type") == "authorized_user":
            return {"token_uri": "https://oauth2.googleapis.com/token", **key}
        return key

    def _grant(self, key: Mapping[str, Any]) -> Mapping[str, str]:
        match key.get("type"):
            case "service_account":
                return {
                    "grant_type": "urn:ietf:params:oauth:grant-type:jwt-bearer",
                    "assertion": self._assertion(key),
                }
            case "authorized_user":
                names = ("client_id", "client_secret", "refresh_token")
                return {"grant_type": "refresh_token", **{name: _text(key, name) for name in names}}
            case other:
                raise ProviderUnavailable(
                    f"credentials of type {other!r} are not supported; use the key of a service account"
                )

    def _assertion(self, key: Mapping[str, Any]) -> str:
        """A request for a token, signed with the key of a service account."""
        from cryptography.hazmat.primitives import hashes, serialization  # noqa: PLC0415
        from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15  # noqa: PLC0415
        from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey  # noqa: PLC0415

        now_s = int(self.clock.now().timestamp())
        header = {"alg": "RS256", "typ": "JWT", "kid": str(key.get("private_key_id", ""))}
        claims = {
            "iss": _text(key, "client_email"),
            "scope": GOOGLE_SCOPE,
            "aud": _text(key, "token_uri"),
            "iat": now_s,
            "exp": now_s + ASSERTION_S,
        }
        signed = b".".join(_base64(json.dumps(part).encode()) for part in (header, claims))
        try:
            private = serialization.load_pem_private_key(_text(key, "private_key").encode(), None)
        except (ValueError, TypeError) as error:
            raise ProviderUnavailable(
                "the private key of the service account is invalid"
            ) from error
        if not isinstance(private, RSAPrivateKey):
            raise ProviderUnavailable("the private key of the service account is no RSA key")
        return (signed + b"." + _base64(private.sign(signed, PKCS1v15(), hashes.SHA256()))).decode()


@dataclass(frozen=True)
class AzureIdentity:
    """The application or managed identity of this service at Azure."""

    http: CloudHttp
    machine: CloudHttp
    environment: Environment
    login_url: str = AZURE_LOGIN_URL
    metadata_url: str = METADATA_URL

    def subscription(self) -> str:
        """Return the subscription that is asked.

        Raises:
            ProviderUnavailable: it is unknown.
        """
        if named := self.environment("AZURE_SUBSCRIPTION_ID"):
            return named
        raise ProviderUnavailable("AZURE_SUBSCRIPTION_ID is not set", is_quiet=True)

    def token(self) -> str:
        """Request an access token.

        Raises:
            ProviderUnavailable: there are no credentials, or they are refused.
        """
        tenant, client, secret = (
            self.environment(f"AZURE_{name}")
            for name in ("TENANT_ID", "CLIENT_ID", "CLIENT_SECRET")
        )
        if tenant and client and secret:
            answer = self.http.json(
                f"{self.login_url}/{tenant}/oauth2/v2.0/token",
                form={
                    "grant_type": "client_credentials",
                    "client_id": client,
                    "client_secret": secret,
                    "scope": f"{AZURE_RESOURCE}.default",
                },
            )
        else:
            query = f"api-version=2018-02-01&resource={AZURE_RESOURCE}"
            path = f"/metadata/identity/oauth2/token?{query}"
            answer = self.machine.json(f"{self.metadata_url}{path}", {"Metadata": "true"})
        return _text(answer, "access_token")


def _text(found: Mapping[str, Any], name: str) -> str:
    """Return a text of an object.

    Raises:
        ProviderUnavailable: it has none of this name.
    """
    value = found.get(name)
    if not isinstance(value, str) or not value:
        raise ProviderUnavailable(f"the credentials have no {name}")
    return value


def _base64(content: bytes) -> bytes:
    return base64.urlsafe_b64encode(content).rstrip(b"=")
