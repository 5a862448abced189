"""Every setting, read from HOLDFAST_* here and nowhere else. `docs/reference/settings.md` describes them all."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from holdfast.errors import BadRequest

DEFAULT_PORT = 8642


def _absolute(path: Path) -> Path:
    # Not resolved: the Python of an environment is a link to another one.
    return path.expanduser().absolute()


Folder = Annotated[Path, AfterValidator(_absolute)]


class SimulatedMarketSettings(BaseSettings):
    """Figures of the simulated spot market of the local launcher. Nobody pays them; they are marked wherever shown."""

    model_config = SettingsConfigDict(env_prefix="HOLDFAST_LOCAL_", extra="ignore")

    seed: int = 0
    """Seed of the weather: the same seed and job give the same denials, delays and preemptions."""
    provision_s: float = Field(default=1.0, ge=0)
    """Mean time from asking for nodes until they stand."""
    denial_rate: float = Field(default=0.0, ge=0, le=0.95)
    """Share of placements that a zone denies at first."""
    mtbf_s: float = Field(default=0.0, ge=0)
    """Mean time between preemptions of one placement; 0 means that only `holdfast preempt` takes nodes."""
    notice_s: float = Field(default=120.0, ge=0)
    """Notice that the market gives before it takes a node."""
    spot_usd_per_hour: float = Field(default=1.15, gt=0)
    """Price of one node for an hour as spot."""
    on_demand_usd_per_hour: float = Field(default=3.67, gt=0)
    """Price of one node for an hour on demand."""


class Settings(BaseSettings):
    """Settings of the service and of the client."""

    model_config = SettingsConfigDict(env_prefix="HOLDFAST_", extra="ignore")

    home: Folder = Path("~/.holdfast")
    """All files of a service: database, logs, launches, tokens."""
    url: str = f"http://127.0.0.1:{DEFAULT_PORT}"
    """Where the client finds the service."""
    token: SecretStr | None = None
    """Access token of the client; absent means the one of `holdfast login`, or in the home folder if it can be read."""
    config_home: Folder = Path("~/.config/holdfast")
    """Where the client keeps a login."""
    database_url: str | None = None
    """SQLAlchemy URL of the database; absent means SQLite in the home folder."""
    skypilot_url: str | None = None
    """SkyPilot's API server, for jobs in the cloud; absent means that this service launches none."""
    skypilot_python: Folder | None = None
    """Python of the environment that has SkyPilot, for `holdfast up`; absent means that it is looked for."""
    skypilot_callback_url: str | None = None
    """Address under which SkyPilot's server reaches this service; absent means that of workers, and
    for a server that `holdfast up` starts the one that the service listens on."""
    skypilot_token: SecretStr | None = None
    """Service account token of that server; absent means that it asks for none, as one on this machine does."""
    skypilot_home: Folder | None = None
    """HOME of that server if it runs on this machine, where its catalogs are; absent means `skypilot` in `home`."""
    skypilot_shares_files: bool | None = None
    """Whether that server sees this machine's files; absent means that it does if it is on this machine."""
    skypilot_has_gate: bool = False
    """Whether that server's environment has our module `holdfast_gate`, as that of the image `skypilot` does. Said
    wrongly, that server can launch nothing: it is told to import the module."""
    skypilot_look_every_s: float = Field(default=10.0, ge=1, le=600)
    """How often each job in the cloud is looked at. Smaller: more load on SkyPilot. Bigger: events are noticed later."""
    skypilot_list_every_s: float = Field(default=30.0, ge=1, le=600)
    """How often SkyPilot lists its queue, which costs its server seconds of work. Bigger: zones are known later."""
    skypilot_keep_days: float = Field(default=30.0, ge=1, le=36_500)
    """How long copied logs of jobs in the cloud stay after a job has ended. A lower value removes logs that people may still want; a
    higher value fills the disk."""
    slurm_folder: Path | None = None
    """Folder that the login node and the compute nodes of a Slurm cluster share, as they see it; absent means that this service
    launches nothing on Slurm."""
    slurm_host: str | None = None
    """Login node as ssh knows it, where this service is not on one; absent means that Slurm's commands are here."""
    slurm_programs: Path | None = None
    """Folder of Slurm's commands, where they are not on PATH; absent means that they are."""
    slurm_cluster: str | None = None
    """Name of the cluster in `infra: slurm/NAME`; absent means that job files name none."""
    slurm_python: Path | None = None
    """Python of the nodes that has torch, as they see it; absent means `python3` on their PATH."""
    slurm_offline_root: Path | None = None
    """Folder with Python packages in `pkgs`, for nodes without a way out; absent means none."""
    slurm_usd_per_node_hour: float = Field(default=1.0, gt=0)
    """What an hour of a node is reckoned at. Nobody pays it: it is marked wherever it is shown."""
    slurm_keep_days: float = Field(default=30.0, ge=1, le=36_500)
    """How long files of launches on Slurm stay in the shared folder after a job has ended. A lower value removes logs that people may
    still want; a higher value fills the shared folder."""
    slurm_look_every_s: float = Field(default=5.0, ge=0.2, le=600)
    """How often each job on Slurm is looked at. Smaller: more questions to Slurm's controller. Bigger: events are noticed later."""
    prices_folder: Folder | None = None
    """Folder of SkyPilot's catalog of prices; absent means that of the SkyPilot server on this machine, else the user's."""
    prices_live: bool = True
    """Whether AWS is asked for its spot prices, where this service has keys of AWS."""
    billing_rules: bool = True
    """Whether bills follow the rules of clouds that move money beside price and time: minimums and credits."""
    public_url: str | None = None
    """Address under which workers reach the service, where it differs from the one it listens on."""
    look_every_s: float = Field(default=1.0, gt=0, le=600)
    """How often each live job is looked at. Smaller: more calls to launchers. Bigger: events are noticed later."""
    replicas_lease_s: float = Field(default=10.0, gt=0)
    """How long a replica keeps a job to itself. Smaller than one look takes: work is done twice, harmlessly. Bigger:
    a dead replica's jobs wait so long for another."""

    folders: str | None = None
    """Folders of the service's machine that jobs of users may name, with commas between; absent means none. `{project}` stands
    for the job's project."""
    code_mb: int = Field(default=2048, ge=1, le=2**30)
    """MiB of code that one user may have uploaded. A lower value refuses large folders; a higher value lets one user fill the disk."""
    code_total_mb: int = Field(default=20_480, ge=1, le=2**30)
    """The same for all users together."""
    code_days: float = Field(default=14.0, ge=0.1, le=3650)
    """How long uploaded code stays that no job needs. A lower value ends retries earlier; a higher value takes room for longer."""
    local_members: bool = False
    """Whether jobs of users may run on the service's own machine. They get accounts of their own there, for which the
    service has to be root."""
    local_folder: Folder = Path("/var/lib/holdfast-nodes")
    """Where the nodes of such jobs have their files: a folder outside of `home`, which they cannot enter."""
    local_memory_gb: float | None = Field(default=None, gt=0)
    """Memory that such a job may take, or each of its processes where there are no control groups; absent means no limit."""
    local_processes: int = Field(default=4096, ge=16, le=4_000_000)
    """Processes and threads that such a job may have. A lower value stops programs with many loader workers; a higher value
    lets one job take what others need."""
    local_keep_days: float = Field(default=30.0, ge=1, le=36_500)
    """How long logs and other files of local jobs stay after a job has ended. A lower value removes logs that people may still
    want; a higher value fills the disk."""
    keep_jobs_days: float | None = Field(default=None, ge=1, le=36_500)
    """How long jobs stay after they have ended; absent means for ever. A lower value removes histories that people may still want;
    a higher value lets the database grow. Sums of costs stay complete."""
    keep_audit_days: float | None = Field(default=None, ge=1, le=36_500)
    """How long rows of the audit log stay; absent means for ever. A lower value loses who did what; a higher value lets the database grow."""
    slurm_members: bool = False
    """Whether jobs of users may run on Slurm, where those of all projects share the account of the service."""
    store_endpoints: str | None = None
    """Addresses of S3 servers beside the public internet that jobs of users may name, with commas between; absent means none but
    the service's own."""
    store_profiles: str | None = None
    """Profiles of AWS on the service's machine that jobs of users may name, with commas between; absent means none."""

    trust_loopback: bool | None = None
    """Whether who comes from this machine without a token is its owner; absent means until the service has users."""
    requests_per_minute: int = Field(default=1200, ge=1, le=1_000_000)
    """Requests of one user. Smaller: a page that is open in many windows is slowed down. Bigger: a script of somebody
    that asks without end takes what others need."""
    submissions_per_minute: int = Field(default=30, ge=1, le=100_000)
    """Submissions of one user. Smaller: a sweep of many jobs takes longer to submit. Bigger: a mistake in a script has
    spent more before somebody sees it."""
    reports_per_minute: int = Field(default=1200, ge=1, le=1_000_000)
    """Deliveries of the workers of one job. Smaller: reports of many nodes come late. Bigger: a worker gone wild takes
    what people need."""
    streams: int = Field(default=200, ge=1, le=100_000)
    """Live streams open at once, of all callers. A lower value turns dashboards away; a higher value takes what requests need."""
    streams_per_user: int = Field(default=30, ge=1, le=100_000)
    """Live streams of one user. A lower value limits the windows that they have open; a higher value lets one user take all."""

    tidy_every_s: float = Field(default=60.0, gt=0, le=3600)
    """How often the checkpoint store of a job that trains is tidied. Smaller: more requests, each of which a bucket may
    charge for. Bigger: old checkpoints take up room for longer."""
    tidy_grace_s: float = Field(default=300.0, ge=0, le=30 * 86_400)
    """How long a checkpoint stays that is not to be kept any more. Smaller: a person who reads one by hand may lose it.
    Bigger: all that is saved meanwhile takes up room, and costs money."""
    tidy_uploads_s: float = Field(default=86_400.0, ge=600, le=365 * 86_400)
    """How long an upload stays to which nothing is written any more, and which may yet be finished. Smaller: a machine
    that was stopped for longer and goes on may finish one of which parts are gone. Bigger: they take up room."""

    smtp_url: SecretStr | None = None
    """Mail server for notifications, `smtp[s]://user:password@host:port?from=...`; absent means that no mail is sent."""
    notify_networks: str | None = None
    """Networks with commas between to which webhooks may be sent beside the public internet; absent means none. Each one more is one
    that everybody who administers a project can reach from here."""
    notify_http: bool = False
    """Whether webhooks may be sent without TLS, so that whoever is on the way can read them."""
    inbox_every_s: float = Field(default=30.0, gt=0, le=3600)
    """How often reports are collected from the store of a job whose workers post them there. Smaller: more requests, each
    of which a bucket may charge for. Bigger: people see later what such a job does."""

    @property
    def sqlalchemy_url(self) -> str:
        """Where the journal lives."""
        return self.database_url or f"sqlite:///{self.home / 'holdfast.db'}"

    @property
    def skypilot_folder(self) -> Path:
        """HOME of SkyPilot's API server on this machine."""
        return self.skypilot_home or self.home / "skypilot"

    @property
    def price_folders(self) -> Sequence[Path]:
        """Where SkyPilot's catalog of prices may be, the best first."""
        if self.prices_folder:
            return (self.prices_folder,)
        homes = (self.skypilot_folder, Path("~").expanduser())
        return tuple(home / ".sky" / "catalogs" / "v8" for home in homes)

    @property
    def code_folder(self) -> Path:
        """Where code that clients upload is kept."""
        return self.home / "code"

    @property
    def login_file(self) -> Path:
        """Where the client keeps the address, token and project of its user."""
        return self.config_home / "login.json"

    @property
    def secret_file(self) -> Path:
        """Where the service keeps its own secret."""
        return self.home / "secret"

    @property
    def audit_head_file(self) -> Path:
        """Where the service keeps the newest row of the audit log that it has seen."""
        return self.home / "audit-head"

    @property
    def token_file(self) -> Path:
        """Where the first access token is kept for the client on this machine."""
        return self.home / "token"


def own_variable(name: str) -> str | None:
    """A variable of this process's environment that its user names; None: it is not set."""
    return os.environ.get(name)


def read_settings() -> Settings:
    """Settings of this process.

    Raises:
        BadRequest: a HOLDFAST_* variable has a value that does not fit.
    """
    try:
        return Settings()
    except ValidationError as error:
        raise BadRequest(_sentence(error)) from error


def read_market() -> SimulatedMarketSettings:
    """Figures of the local launcher's market.

    Raises:
        BadRequest: a HOLDFAST_LOCAL_* variable has a value that does not fit.
    """
    try:
        return SimulatedMarketSettings()
    except ValidationError as error:
        raise BadRequest(_sentence(error)) from error


def _sentence(error: ValidationError) -> str:
    prefix = {SimulatedMarketSettings.__name__: "HOLDFAST_LOCAL_"}.get(error.title, "HOLDFAST_")
    return "; ".join(
        f"{prefix}{str(flaw['loc'][0]).upper()}={flaw['input']!r}: {flaw['msg'].lower()}"
        for flaw in error.errors()
    )
