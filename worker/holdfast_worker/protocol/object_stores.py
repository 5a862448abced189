"""Google Cloud Storage and Azure Blob Storage: URLs, variables and error messages.

The worker and the service both open these stores with obstore, which reports errors only in text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

GOOGLE: Final = "gs"
AZURE: Final = "az"
CLOUDS: Final = frozenset({GOOGLE, AZURE})
"""URL schemes of the stores of this module."""
STORE_FORMS: Final = "s3://bucket/prefix, gs://bucket/prefix, az://container/prefix or file:///path"
"""The addresses that checkpoint stores may have, for messages."""

FILES: Final = "files"
"""Place of a store in a directory."""
OWN_SERVER: Final = "own"
"""Place of a store on a server of its own, whose region and prices only its owner knows."""

CONNECT_TIMEOUT_S: Final = 5
"""Time limit for a connection. A higher value waits on dead addresses; a lower value fails on a slow network."""
READ_TIMEOUT_S: Final = 60
"""Time limit for one complete response. A higher value waits on dead connections; a lower
value fails on a slow link."""

_GOOGLE_OPTIONS: Final = {
    "GOOGLE_APPLICATION_CREDENTIALS": "application_credentials",
    "GOOGLE_SERVICE_ACCOUNT": "service_account",
    "GOOGLE_SERVICE_ACCOUNT_PATH": "service_account",
    "GOOGLE_SERVICE_ACCOUNT_KEY": "service_account_key",
    "GOOGLE_BEARER_TOKEN": "bearer_token",
    "GOOGLE_BASE_URL": "base_url",
}
_EMULATOR: Final = "STORAGE_EMULATOR_HOST"
"""Names a server to Google's own clients, which then send no credentials."""
_AZURE_OPTIONS: Final = {
    # The names of the az command come first, so that obstore's win.
    "AZURE_STORAGE_ACCOUNT": "account_name",
    "AZURE_STORAGE_KEY": "account_key",
    "AZURE_STORAGE_ACCOUNT_NAME": "account_name",
    "AZURE_STORAGE_ACCOUNT_KEY": "account_key",
    "AZURE_STORAGE_SAS_TOKEN": "sas_key",
    "AZURE_STORAGE_TOKEN": "token",
    "AZURE_STORAGE_ENDPOINT": "endpoint",
    "AZURE_TENANT_ID": "tenant_id",
    "AZURE_CLIENT_ID": "client_id",
    "AZURE_CLIENT_SECRET": "client_secret",
    "AZURE_AUTHORITY_HOST": "authority_host",
    "AZURE_FEDERATED_TOKEN_FILE": "federated_token_file",
    "AZURE_USE_AZURE_CLI": "use_azure_cli",
}
CONNECTION_STRING: Final = "AZURE_STORAGE_CONNECTION_STRING"
"""The variable that contains account, credentials and endpoint in one."""
ACCOUNT_VARIABLES: Final = frozenset(
    {"AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT", CONNECTION_STRING}
)
"""Variables of which a store at Azure needs one."""
_CONNECTION_PARTS: Final = {
    "accountname": "account_name",
    "accountkey": "account_key",
    "sharedaccesssignature": "sas_key",
    "blobendpoint": "endpoint",
}
_CREDENTIAL_TYPES: Final = {
    "account_key": "access_key",
    "sas_key": "sas_token",
    "token": "bearer_token",
    "client_secret": "client_secret",
    "federated_token_file": "workload_identity",
}
"""obstore's name of each kind of credentials, by the option that contains them; the first found is used."""
VARIABLES: Final[Mapping[str, tuple[str, ...]]] = {
    GOOGLE: (*_GOOGLE_OPTIONS, _EMULATOR),
    AZURE: (*_AZURE_OPTIONS, CONNECTION_STRING),
}
"""Variables that locate a store or contain its credentials, by URL scheme."""
CREDENTIALS: Final = frozenset(
    {
        *("GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_SERVICE_ACCOUNT", "GOOGLE_BEARER_TOKEN"),
        *("GOOGLE_SERVICE_ACCOUNT_PATH", "GOOGLE_SERVICE_ACCOUNT_KEY", "AZURE_CLIENT_SECRET"),
        *("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_KEY", "AZURE_STORAGE_SAS_TOKEN"),
        *("AZURE_STORAGE_TOKEN", "AZURE_FEDERATED_TOKEN_FILE", CONNECTION_STRING),
    }
)
"""Variables that contain or name credentials."""
PREFIXES: Final = {"s3": "AWS_", GOOGLE: "GOOGLE_", AZURE: "AZURE_"}
"""What the names of a store's variables begin with, by URL scheme."""

GOOGLE_ENDPOINT: Final = "https://storage.googleapis.com"
AZURE_HOST: Final = re.compile(
    r"https://[a-z0-9]{3,24}\.blob\.core\.(windows\.net|chinacloudapi\.cn|usgovcloudapi\.net)/?"
)
"""Endpoints of accounts in Microsoft's clouds."""
_ACCOUNT: Final = re.compile(r"[a-z0-9]{3,24}")
_HOST: Final = re.compile(r"[A-Za-z0-9.-]+|[0-9A-Fa-f:.]+")
"""Hosts that all parsers of URLs read alike; obstore panics at others."""
BUCKET: Final = re.compile(r"[A-Za-z0-9$][A-Za-z0-9._-]*")
"""Names that buckets and containers can have."""
_MISSING: Final = frozenset({"NoSuchBucket", "ContainerNotFound"})
_FORBIDDEN: Final = frozenset(
    {"AccessDenied", "AuthorizationPermissionMismatch", "InsufficientAccountPermissions"}
)
_TRANSIENT_STATUSES: Final = frozenset({408, 409, 429})
"""Statuses below 500 after which a retry may succeed: a timeout, a conflict, a rate limit."""
_FINAL_CODES: Final = frozenset({"BlobImmutableDueToPolicy"})
"""Codes of conflicts that remain."""
_METADATA: Final = re.compile(r"/computeMetadata/v1/|\?api-version=[\d-]+&resource=")
"""URLs of the metadata services, which obstore asks if it finds no other credentials."""
_NO_CREDENTIALS: Final = "no credentials were found"
_QUERY: Final = re.compile(r"\?\S+")
"""Part of a URL in a message, which may contain a shared access signature."""


class StoreNotConfigured(ValueError):
    """The variables of a store are missing, contradict each other, or have invalid values."""


@dataclass(frozen=True, kw_only=True)
class CloudStoreConfig:
    """A bucket or container, and how to reach it."""

    scheme: str
    bucket: str
    prefix: str
    options: Mapping[str, Any] = field(repr=False)
    """Options of obstore's store, which override those that it finds in the environment."""
    endpoint: str
    """URL of the server."""

    @property
    def url(self) -> str:
        """The bucket or container as a URL."""
        return f"{self.scheme}://{self.bucket}"

    @property
    def place(self) -> str:
        """Where the objects are stored; the region is unknown."""
        host = urlsplit(self.endpoint).hostname or ""
        if self.scheme == GOOGLE:
            return "gcp" if host.endswith(".googleapis.com") else OWN_SERVER
        return "azure" if ".blob." in host and not host.startswith("127.") else OWN_SERVER

    @property
    def client_options(self) -> dict[str, Any]:
        """Options of obstore's HTTP client, without its number of connections."""
        return {
            "allow_http": self.endpoint.startswith("http://"),
            "connect_timeout": f"{CONNECT_TIMEOUT_S}s",
            "timeout": f"{READ_TIMEOUT_S}s",
        }

    def key(self, name: str) -> str:
        """The full key of an object; without a name that of the prefix."""
        return "/".join(filter(None, (self.prefix, name)))


def cloud_store(url: str, env: Mapping[str, str], job: str = "") -> CloudStoreConfig:
    """The configuration of `gs://bucket/prefix` or `az://container/prefix`.

    With `job`, that of its part of the store.

    Raises:
        StoreNotConfigured: a variable has an invalid value, or the account is unknown.
    """
    bucket = url.partition("://")[2].partition("/")[0]
    if not BUCKET.fullmatch(bucket):
        raise StoreNotConfigured(
            f"{url}: {bucket!r} is not the name of a bucket; write letters, digits, and . _ -"
        )
    parts = urlsplit(url)
    if {".", ".."} & set(parts.path.split("/")):
        raise StoreNotConfigured(f"{url}: has the part . or .., which keys cannot have; remove it")
    options, endpoint = (google_options if parts.scheme == GOOGLE else azure_options)(env)
    prefix = "/".join(part for part in (*parts.path.split("/"), job) if part)
    return CloudStoreConfig(
        scheme=parts.scheme,
        bucket=parts.netloc,
        prefix=prefix,
        options=options,
        endpoint=endpoint,
    )


def google_options(env: Mapping[str, str]) -> tuple[dict[str, Any], str]:
    """Options of obstore for Google Cloud Storage, and the URL of the server.

    Raises:
        StoreNotConfigured: a variable has an invalid value.
    """
    options: dict[str, Any] = _named(_GOOGLE_OPTIONS, env)
    endpoint = options.get("base_url") or GOOGLE_ENDPOINT
    if emulator := env.get(_EMULATOR):
        endpoint = emulator if "://" in emulator else f"http://{emulator}"
        # Without a token, obstore asks the metadata service of the machine for one.
        options = {"base_url": endpoint, "bearer_token": "emulator"}
    elif key := options.get("service_account_key"):
        endpoint = _endpoint_of_key(key) or endpoint
    endpoint = _checked("GOOGLE_BASE_URL", endpoint)
    if "base_url" in options:
        options["base_url"] = endpoint
    return options, endpoint


def azure_options(env: Mapping[str, str]) -> tuple[dict[str, Any], str]:
    """Options of obstore for Azure Blob Storage, and the URL of the account.

    Raises:
        StoreNotConfigured: a variable has an invalid value, or the account is unknown.
    """
    options: dict[str, Any] = _parts_of_connection(env.get(CONNECTION_STRING, ""))
    suffix = options.pop("suffix", "core.windows.net")
    options |= _named(_AZURE_OPTIONS, env)
    account = options.get("account_name", "")
    if not account:
        raise StoreNotConfigured(
            "the storage account is unknown; set AZURE_STORAGE_ACCOUNT_NAME, or AZURE_STORAGE_CONNECTION_STRING"
        )
    if not _ACCOUNT.fullmatch(account):
        raise StoreNotConfigured(
            f"AZURE_STORAGE_ACCOUNT_NAME={account!r}: is not the name of a storage account; write 3 to 24 lower-case letters and digits"
        )
    endpoint = options.get("endpoint") or f"https://{account}.blob.{suffix}"
    endpoint = _checked("AZURE_STORAGE_ENDPOINT", endpoint)
    options |= {"endpoint": endpoint, "use_emulator": False}
    # obstore reads the environment, too, where credentials of another kind might come first.
    kinds = (kind for option, kind in _CREDENTIAL_TYPES.items() if option in options)
    if kind := next(kinds, None):
        options["credential_type"] = kind
    return options, endpoint


def _named(known: Mapping[str, str], env: Mapping[str, str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, option in known.items():
        value = env.get(name, "").strip()
        # Such a value cannot be part of a request, and obstore panics at it. A key may be a JSON text of several lines.
        if option != "service_account_key" and not value.isprintable():
            raise StoreNotConfigured(
                f"{name}: contains a line break or another control character; remove it"
            )
        if value:
            found[option] = value
    return found


def _parts_of_connection(text: str) -> dict[str, str]:
    """The options in a connection string of Azure: `name=value;...`."""
    found: dict[str, str] = {}
    for part in filter(None, text.strip().split(";")):
        name, mark, value = part.partition("=")
        if not mark:
            # Never repeats the value, which contains the key.
            raise StoreNotConfigured(
                f"{CONNECTION_STRING}: has a part without '='; copy it again from the account's access keys"
            )
        word = name.strip().lower()
        if not value.isprintable():
            raise StoreNotConfigured(
                f"{CONNECTION_STRING}: contains a line break or another control character; remove it"
            )
        if option := _CONNECTION_PARTS.get(word):
            found[option] = value
        elif word == "endpointsuffix":
            found["suffix"] = value
        elif word == "usedevelopmentstorage" and value.lower() == "true":
            raise StoreNotConfigured(
                f"{CONNECTION_STRING}: UseDevelopmentStorage names no account; write its BlobEndpoint, AccountName and AccountKey"
            )
    return found


def _endpoint_of_key(key: str) -> str:
    """The server that the key of a service account names; empty for Google's."""
    try:
        value = json.loads(key)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise StoreNotConfigured(
            "GOOGLE_SERVICE_ACCOUNT_KEY: is not the JSON of a key; write its content, or its path in GOOGLE_APPLICATION_CREDENTIALS"
        )
    return str(value.get("gcs_base_url") or "")


def _checked(name: str, endpoint: str) -> str:
    """An endpoint without a slash at its end."""
    try:
        parts = urlsplit(endpoint)
        plain = (
            parts.scheme in {"http", "https"}
            and _HOST.fullmatch(parts.hostname or "")
            and parts.port != 0
        )
    except ValueError:
        plain = None
    # obstore reads a backslash as a slash, so that another host would be checked than is used.
    if not plain or any(c in "@?#\\" or c <= " " for c in endpoint):
        raise StoreNotConfigured(
            f"{name}={endpoint!r}: is not an endpoint; write it like https://storage.example.com"
        )
    return endpoint.rstrip("/")


@dataclass(frozen=True)
class StoreFailure:
    """What an error of obstore means."""

    message: str
    is_final: bool
    """Whether a retry would fail again: credentials, permissions, or a missing bucket."""
    code: str = ""
    """The server's error code, if it named one."""


def failure_of(error: Exception, where: CloudStoreConfig) -> StoreFailure:
    """Parse an error of obstore, which describes the server's response only in its text."""
    text = str(error)
    head = text.partition("\n\nDebug source:")[0]
    first = _QUERY.sub("", head.partition("\n")[0].partition(": <")[0])
    first = re.sub(r"^Generic \w+ error: ", "", first)
    code, message, status = (
        found[1].strip() if (found := re.search(pattern, text)) else ""
        for pattern in (
            r"<Code>\s*(\w+)\s*</Code>",
            r"<Message>([^<\n]*)",
            r"(?:status code|status): (\d+)",
        )
    )
    number = int(status) if status else 0
    if _METADATA.search(text) and number < 500:
        code, message = _NO_CREDENTIALS, "neither in variables nor on this machine"
    remedy = _remedy(code, number, text, where)
    summary = f"{where.url}: " + (f"{code}: {message.removesuffix('.')}" if code else first)
    is_final = code in {*_FINAL_CODES, _NO_CREDENTIALS} or (
        400 <= number < 500 and number not in _TRANSIENT_STATUSES
    )
    return StoreFailure(f"{summary}; {remedy}" if remedy else summary, is_final, code)


def is_missing_bucket(error: Exception) -> bool:
    """Whether an error means that the bucket does not exist, rather than an object in it."""
    return any(f"<Code>{code}<" in str(error) for code in _MISSING)


def _remedy(code: str, status: int, text: str, where: CloudStoreConfig) -> str:  # noqa: PLR0911 - one for each cause
    """What to do about an error; empty if it may pass by itself."""
    is_google = where.scheme == GOOGLE
    credentials = (
        "GOOGLE_APPLICATION_CREDENTIALS, or run where a service account is attached"
        if is_google
        else "AZURE_STORAGE_ACCOUNT_KEY, AZURE_STORAGE_SAS_TOKEN or AZURE_CLIENT_ID, or run where an identity is attached"
    )
    if code == _NO_CREDENTIALS:
        return f"set {credentials}"
    if code in _MISSING:
        return (
            "create the bucket, or correct the address"
            if is_google
            else "create the container, or correct the address or AZURE_STORAGE_ACCOUNT_NAME"
        )
    if code in _FORBIDDEN or (status == 403 and is_google):
        role = "Storage Object User" if is_google else "Storage Blob Data Contributor"
        return f"grant the credentials the role {role}"
    if status in {401, 403}:
        return f"check {credentials}"
    if re.search(r"service account|redentials|Access Key|credential error", text):
        return f"check {credentials}"
    if not status and "dns error" in text and not is_google:
        return "check AZURE_STORAGE_ACCOUNT_NAME"
    return ""
