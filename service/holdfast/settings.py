"""All settings, read from HOLDFAST_* here and nowhere else.

`docs/reference/settings.md` describes them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from holdfast.errors import BadRequest
from holdfast.log_context import LogFormat

DEFAULT_PORT = 8642


def _absolute(path: Path) -> Path:
    # Not resolved: the Python of an environment is a link to another one.
    return path.expanduser().absolute()


Folder = Annotated[Path, AfterValidator(_absolute)]

HintProvider: TypeAlias = Literal["aws", "gcp", "azure"]


def _names(value: object) -> object:
    return tuple(name.strip() for name in value.split(",")) if isinstance(value, str) else value


HintProviders = Annotated[tuple[HintProvider, ...], NoDecode, BeforeValidator(_names)]


class SimulatedMarketSettings(BaseSettings):
    """Parameters of the simulated spot market of the local launcher.

    Its prices are simulated and marked as such wherever they are displayed.
    """

    model_config = SettingsConfigDict(env_prefix="HOLDFAST_LOCAL_", extra="ignore")

    seed: int = 0
    """Random seed: the same seed and job give the same denials, delays and preemptions."""
    provision_s: float = Field(default=1.0, ge=0)
    """Mean time in seconds from the request for nodes until they are ready."""
    denial_rate: float = Field(default=0.0, ge=0, le=0.95)
    """Share of placements that a zone denies at first."""
    mtbf_s: float = Field(default=0.0, ge=0)
    """Mean time in seconds between preemptions of a placement. 0: only `holdfast preempt`
    preempts nodes."""
    notice_s: float = Field(default=120.0, ge=0)
    """Notice in seconds before the market preempts a node."""
    spot_usd_per_hour: float = Field(default=1.15, gt=0)
    """Price of a spot node per hour."""
    on_demand_usd_per_hour: float = Field(default=3.67, gt=0)
    """Price of an on-demand node per hour."""
    on_demand_denial_rate: float = Field(default=0.0, ge=0, le=0.95)
    """Share of requests for on-demand nodes that a zone denies."""
    on_demand_wait_s: float = Field(default=0.0, ge=0)
    """Seconds for which on-demand nodes are awaited before they are provisioned."""
    market_trace: Folder | None = None
    """Directory of recorded availability that decides where and when spot nodes are placed and
    lost. Absent: chance does."""


class Settings(BaseSettings):
    """Settings of the service and of the client."""

    model_config = SettingsConfigDict(env_prefix="HOLDFAST_", extra="ignore")

    home: Folder = Path("~/.holdfast")
    """Directory with all files of a service: database, logs, launches, tokens."""
    url: str = f"http://127.0.0.1:{DEFAULT_PORT}"
    """Address of the service for the client."""
    token: SecretStr | None = None
    """Access token of the client. Absent: that of `holdfast login`, or that in the home
    directory if it is readable."""
    config_home: Folder = Path("~/.config/holdfast")
    """Directory in which the client stores a login."""
    database_url: str | None = None
    """SQLAlchemy URL of the database. Absent: SQLite in the home directory."""
    log_format: LogFormat = "text"
    """Format of the service's log on standard error: `text`, or `json` with one object per line."""
    otlp_endpoint: str | None = None
    """Address of an OpenTelemetry collector for traces, which speaks OTLP over HTTP, such as
    `http://localhost:4318`. Absent: no traces."""
    shares_home: bool = True
    """Whether all replicas share the home directory. False: uploaded code is stored in the
    database, the secret comes from `secret_file`, and there are no local nodes."""
    secret_file: Folder | None = None
    """File of the service's own secret, the same for all replicas. Absent: `secret` in `home`,
    created at the first start."""
    skypilot_url: str | None = None
    """SkyPilot's API server, for jobs in the cloud. Absent: no launches in the cloud."""
    skypilot_python: Folder | None = None
    """Python of the environment that has SkyPilot, for `holdfast up`. Absent: it is searched
    for."""
    skypilot_callback_url: str | None = None
    """Address at which SkyPilot's server reaches this service. Absent: the address for workers.
    For a server started by `holdfast up`: the address that the service listens on."""
    skypilot_token: SecretStr | None = None
    """Service account token of that server. Absent: the server requires none, as one on this
    machine."""
    skypilot_home: Folder | None = None
    """HOME of that server if it runs on this machine; it contains the price catalogs. Absent:
    `skypilot` in `home`."""
    skypilot_shares_files: bool | None = None
    """Whether that server sees this machine's files. Absent: it does if it is on this machine."""
    skypilot_has_gate: bool = False
    """Whether that server's environment has the module `holdfast_gate`, as in the image
    `skypilot`. With a wrong value, the server can launch nothing, since it is configured to
    import the module."""
    skypilot_look_every_s: float = Field(default=10.0, ge=1, le=600)
    """Seconds between two polls of a cloud job. A lower value adds load on SkyPilot; a higher
    value detects events later."""
    skypilot_list_every_s: float = Field(default=30.0, ge=1, le=600)
    """Seconds between two listings of SkyPilot's queue. Each costs its server seconds of work. A
    higher value detects zones later."""
    skypilot_keep_days: float = Field(default=30.0, ge=1, le=36_500)
    """Days for which copied logs of cloud jobs are kept after a job has ended. A lower value
    removes logs that people may still need; a higher value fills the disk."""
    slurm_folder: Path | None = None
    """Directory that the login node and the compute nodes of a Slurm cluster share, as they see
    it. Absent: no launches on Slurm."""
    slurm_host: str | None = None
    """Login node as ssh knows it, if this service runs elsewhere. Absent: Slurm's commands are
    local."""
    slurm_programs: Path | None = None
    """Directory of Slurm's commands. Absent: they are on PATH."""
    slurm_cluster: str | None = None
    """Name of the cluster in `infra: slurm/NAME`. Absent: job files name none."""
    slurm_python: Path | None = None
    """Python of the nodes that has torch, as they see it. Absent: `python3` on their PATH."""
    slurm_offline_root: Path | None = None
    """Directory with Python packages in `pkgs`, for nodes without internet access. Absent: none."""
    slurm_usd_per_node_hour: float = Field(default=1.0, gt=0)
    """Price of a node hour on Slurm. It is an estimate, and marked as such wherever it is
    displayed."""
    slurm_prices: str | None = None
    """Prices of a node hour in partitions, such as `hpc/preempt=0.50,hpc/normal=2`, separated by
    commas. Absent: `slurm_usd_per_node_hour` everywhere."""
    slurm_keep_days: float = Field(default=30.0, ge=1, le=36_500)
    """Days for which launch files on Slurm stay in the shared directory after a job has ended. A
    lower value removes logs that people may still need; a higher value fills the shared
    directory."""
    slurm_look_every_s: float = Field(default=5.0, ge=0.2, le=600)
    """Seconds between two polls of a Slurm job. A lower value adds requests to Slurm's
    controller; a higher value detects events later."""
    prices_folder: Folder | None = None
    """Directory of SkyPilot's price catalog. Absent: that of the SkyPilot server on this
    machine, or else that of the user."""
    prices_live: bool = True
    """Whether to request spot prices from AWS, if this service has AWS credentials."""
    capacity_hints: HintProviders | None = None
    """Providers that are asked how likely spot nodes are at the places of planned jobs, separated
    by commas. Absent: none."""
    resource_prices: Folder | None = None
    """YAML file with prices of storage, requests, egress and disks, for those that differ from the
    bundled list prices. Absent: list prices."""
    billing_rules: bool = True
    """Whether bills apply the rules of clouds beyond price and time: minimums and credits."""
    public_url: str | None = None
    """Address at which workers reach the service, if it differs from the listening address."""
    look_every_s: float = Field(default=1.0, gt=0, le=600)
    """Seconds between two polls of a live job. A lower value adds calls to launchers; a higher
    value detects events later."""
    plan_every_s: float = Field(default=600.0, ge=10, le=3600)
    """Seconds between two decisions about the nodes of a job with a plan, and the time that a
    decision may cost it. A lower value moves jobs for short gaps in the market; a higher value
    requests on-demand nodes earlier."""
    avoid_gpu_hours: float = Field(default=24.0, ge=0, le=720)
    """Hours for which launches avoid a node after a fault of one of its GPUs; 0: never. A lower
    value uses a node before it is repaired; a higher value leaves repaired nodes idle."""
    restart_s: float = Field(default=30.0, ge=0, le=1800)
    """Seconds before a failed program is restarted, on local nodes and on Slurm; doubled with each
    further failure, up to 30 minutes. A lower value fails again while the cause lasts; a higher
    value delays the recovery."""
    replicas_lease_s: float = Field(default=10.0, gt=0)
    """Seconds for which a replica holds the lease on a job. A value below the duration of one
    poll duplicates work, harmlessly; with a higher value, the jobs of a dead replica wait
    longer."""

    folders: str | None = None
    """Directories of the service's machine that users' jobs may name, separated by commas.
    Absent: none. `{project}` stands for the job's project."""
    code_mb: int = Field(default=2048, ge=1, le=2**30)
    """MiB of code that a user may have uploaded. A lower value refuses large directories; a
    higher value lets one user fill the disk."""
    code_total_mb: int = Field(default=20_480, ge=1, le=2**30)
    """MiB of uploaded code of all users together."""
    code_days: float = Field(default=14.0, ge=0.1, le=3650)
    """Days for which uploaded code is kept without a job that needs it. A lower value makes
    retries fail earlier; a higher value uses disk space for longer."""
    local_members: bool = False
    """Whether users' jobs may run on the service's own machine. Each gets its own account there,
    for which the service has to run as root."""
    local_folder: Folder = Path("/var/lib/holdfast-nodes")
    """Directory for the files of those jobs' nodes, outside of `home`, which they cannot enter."""
    local_memory_gb: float | None = Field(default=None, gt=0)
    """Memory in GiB of such a job, or of each of its processes without control groups. Absent:
    no limit."""
    local_processes: int = Field(default=4096, ge=16, le=4_000_000)
    """Processes and threads of such a job. A lower value stops programs with many loader
    workers; a higher value lets one job use the resources of others."""
    local_keep_days: float = Field(default=30.0, ge=1, le=36_500)
    """Days for which logs and other files of local jobs are kept after a job has ended. A lower
    value removes logs that people may still need; a higher value fills the disk."""
    keep_jobs_days: float | None = Field(default=None, ge=1, le=36_500)
    """Days for which jobs are kept after they have ended. Absent: permanently. A lower value
    removes histories that people may still need; a higher value lets the database grow. Cost
    totals stay complete."""
    keep_audit_days: float | None = Field(default=None, ge=1, le=36_500)
    """Days for which rows of the audit log are kept. Absent: permanently. A lower value loses
    evidence of actions; a higher value lets the database grow."""
    slurm_members: bool = False
    """Whether users' jobs may run on Slurm, where all projects share the account of the service."""
    store_endpoints: str | None = None
    """Addresses of S3 servers outside the public internet that users' jobs may name, separated
    by commas. Absent: only the service's own."""
    store_profiles: str | None = None
    """AWS profiles on the service's machine that users' jobs may name, separated by commas.
    Absent: none."""

    trust_loopback: bool | None = None
    """Whether a caller on this machine without a token is the owner. Absent: until the service
    has users."""
    requests_per_minute: int = Field(default=1200, ge=1, le=1_000_000)
    """Requests of a user per minute. A lower value slows down a page that is open in many
    windows; a higher value lets a script in an endless loop use the capacity of others."""
    submissions_per_minute: int = Field(default=30, ge=1, le=100_000)
    """Submissions of a user per minute. A lower value slows down large sweeps; a higher value
    lets a faulty script spend more before it is noticed."""
    sweep_jobs: int = Field(default=500, ge=1, le=10_000)
    """Jobs of a sweep. A lower value refuses useful grids; a higher value lets a typing error
    submit as many jobs, each of which costs money."""
    node_commands: bool = True
    """Whether owners of jobs and admins of projects may run commands on nodes with `holdfast
    exec` and `holdfast shell`."""
    reports_per_minute: int = Field(default=1200, ge=1, le=1_000_000)
    """Deliveries of a job's workers per minute. A lower value delays reports of many nodes; a
    higher value lets a faulty worker use the capacity of users."""
    streams: int = Field(default=200, ge=1, le=100_000)
    """Live streams of all callers. A lower value rejects dashboards; a higher value uses the
    capacity of requests."""
    streams_per_user: int = Field(default=30, ge=1, le=100_000)
    """Live streams of a user. A lower value limits open windows; a higher value lets one user
    open all streams."""

    oidc_issuer: str | None = None
    """Address of the OpenID Connect provider for single sign-on, exactly as it calls itself. Absent:
    users sign in with access tokens only."""
    oidc_client_id: str | None = None
    """Id of this service at the provider."""
    oidc_client_secret: SecretStr | None = None
    """Secret of this service at the provider. Absent, also from a file: it has none."""
    oidc_client_secret_file: Folder | None = None
    """File with that secret."""
    oidc_audience: str | None = None
    """Audience that ID tokens have to name. Absent: the id of this service."""
    oidc_groups_claim: str = "groups"
    """Claim with the groups of a user."""
    oidc_groups: str | None = None
    """Roles of groups, separated by semicolons, such as `platform=admin; nlp-team=nlp:member`."""
    oidc_scopes: str = "openid profile email offline_access"
    """Scopes of a sign-in, separated by spaces. Without a refresh token, which `offline_access`
    requests from most providers, a sign-in ends after an hour."""
    oidc_grace_hours: float = Field(default=8.0, ge=1, le=168)
    """Hours for which users stay signed in while the provider does not respond. A lower value locks
    users out in an outage; a higher value keeps users for longer who lost their account in it."""

    tidy_every_s: float = Field(default=60.0, gt=0, le=3600)
    """Seconds between two retention runs for a job that trains. A lower value sends more
    requests, which a bucket may charge for; a higher value keeps old checkpoints for longer."""
    tidy_grace_s: float = Field(default=300.0, ge=0, le=30 * 86_400)
    """Seconds for which a superfluous checkpoint is kept. A lower value may remove one that a
    person is reading; a higher value stores, and pays for, more checkpoints."""
    tidy_uploads_s: float = Field(default=86_400.0, ge=600, le=365 * 86_400)
    """Seconds for which an inactive unfinished upload is kept. A lower value may remove parts of
    an upload that a suspended machine still finishes; a higher value uses space for longer."""

    smtp_url: SecretStr | None = None
    """Mail server for notifications, `smtp[s]://user:password@host:port?from=...`. Absent: no
    mail."""
    notify_networks: str | None = None
    """Networks outside the public internet to which webhooks may be sent, separated by commas.
    Absent: none. Every project admin can reach all of these networks from here."""
    notify_http: bool = False
    """Whether webhooks may be sent without TLS, readable for everyone on the network path."""
    inbox_every_s: float = Field(default=30.0, gt=0, le=3600)
    """Seconds between two imports from the store of a job whose workers leave reports there. A
    lower value sends more requests, which a bucket may charge for; a higher value shows
    progress later."""

    @property
    def sqlalchemy_url(self) -> str:
        """SQLAlchemy URL of the database, with the default filled in."""
        return self.database_url or f"sqlite:///{self.home / 'holdfast.db'}"

    @property
    def skypilot_folder(self) -> Path:
        """HOME of SkyPilot's API server on this machine."""
        return self.skypilot_home or self.home / "skypilot"

    @property
    def price_folders(self) -> Sequence[Path]:
        """Possible directories of SkyPilot's price catalog, the best first."""
        if self.prices_folder:
            return (self.prices_folder,)
        homes = (self.skypilot_folder, Path("~").expanduser())
        return tuple(home / ".sky" / "catalogs" / "v8" for home in homes)

    @property
    def code_folder(self) -> Path:
        """Directory of the code that clients upload."""
        return self.home / "code"

    @property
    def login_file(self) -> Path:
        """File in which the client stores the address, token and project of its user."""
        return self.config_home / "login.json"

    @property
    def own_secret_file(self) -> Path:
        """File of the service's own secret."""
        return self.secret_file or self.home / "secret"

    @property
    def audit_head_file(self) -> Path:
        """File of the newest row of the audit log that the service has seen."""
        return self.home / "audit-head"

    @property
    def token_file(self) -> Path:
        """File of the first access token, for the client on this machine."""
        return self.home / "token"


def own_variable(name: str) -> str | None:
    """The value of an environment variable that a user names; None if it is not set."""
    return os.environ.get(name)


def read_settings() -> Settings:
    """Read the settings of this process.

    Raises:
        BadRequest: a HOLDFAST_* variable has an invalid value.
    """
    try:
        return Settings()
    except ValidationError as error:
        raise BadRequest(_sentence(error)) from error


def read_market() -> SimulatedMarketSettings:
    """Read the parameters of the local launcher's market.

    Raises:
        BadRequest: a HOLDFAST_LOCAL_* variable has an invalid value.
    """
    try:
        return SimulatedMarketSettings()
    except ValidationError as error:
        raise BadRequest(_sentence(error)) from error


def _sentence(error: ValidationError) -> str:
    prefix = {SimulatedMarketSettings.__name__: "HOLDFAST_LOCAL_"}.get(error.title, "HOLDFAST_")
    return "; ".join(
        f"{prefix}{str(issue['loc'][0]).upper()}={issue['input']!r}: {issue['msg'].lower()}"
        for issue in error.errors()
    )
