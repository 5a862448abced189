"""Job files that try to reach foreign data through a launcher: it is neither read nor sent."""

from __future__ import annotations

import asyncio
import io
import itertools
import os
import tarfile
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from holdfast.confinement import Confinement, confinement_of
from holdfast.domain.access.permissions import OWNER, Caller, Role
from holdfast.domain.events import Submitted
from holdfast.domain.jobfile.confinement import CONFIG_KEYS, MAX_LOCAL_NODES, store_folder
from holdfast.domain.jobfile.parser import Overrides
from holdfast.domain.jobfile.resource_options import resource_options
from holdfast.domain.jobfile.slurm_options import OPTIONS as SBATCH_OPTIONS
from holdfast.domain.jobfile.spec import Engine, JobSpec
from holdfast.domain.pricing.slurm_prices import SlurmPrices
from holdfast.domain.simulation.spot_market import MarketParameters
from holdfast.errors import (
    BadJobFile,
    CheckpointStoreRefused,
    Forbidden,
    HoldfastError,
    LaunchRefused,
)
from holdfast.host.allowed_folders import Folders
from holdfast.launchers.local import environment, process_cleanup
from holdfast.launchers.local import submission as local_submission
from holdfast.launchers.local.launch_dir import LaunchDir
from holdfast.launchers.local.launch_spec import LaunchSpec as LocalOrder
from holdfast.launchers.local.sandbox import FIRST_UID, Sandboxes
from holdfast.launchers.skypilot import task_body, upload
from holdfast.launchers.slurm import batch_job
from holdfast.ports import Launch
from holdfast.rendering import load, read_and_render
from holdfast.server.launchers import refusals
from holdfast.settings import Settings
from holdfast.storage.store_policy import StorePolicy, StoreSettings
from holdfast.submission.submit import submission
from holdfast_worker.protocol.environment import Env
from support.hostile_files import CATEGORIES, Target, hostile
from support.principals import STAGE
from support.simulated_service import SimulatedService

HOSTILE = int(os.environ.get("HOLDFAST_TEST_HOSTILE", "432"))
"""Nine job files for each category and launcher."""
CANARY = b"canary-of-somebody-else"
BOB = Caller(name="bob", roles={"nlp": Role.MEMBER})
LEAD = Caller(name="lead", roles={"nlp": Role.ADMIN})
BOSS = Caller(name="boss", is_admin=True)
ONE_PROJECT = Caller(name="boss", is_admin=True, only="nlp")
PLACE = batch_job.ClusterPaths(
    root="/shared", worker="/shared/w", python="", offline="", prices=SlurmPrices(1), cluster=""
)


class Machine:
    """The machine of a service: its home, a root per project, and symlinks out of one root."""

    def __init__(self, world: SimulatedService, folder: Path) -> None:
        self.folder, self.home = folder, folder / "home"
        self.mine, self.theirs = folder / "projects" / "nlp", folder / "projects" / "vision"
        for place in (self.home / "launches", self.theirs, self.mine / "code"):
            place.mkdir(parents=True)
            if place.parent != self.mine:
                (place / "secret").write_bytes(CANARY)
        (self.home / "secret").write_bytes(CANARY)
        (self.mine / "code" / "train.py").write_text("print(1)")
        for name, target in (("home", self.home), ("up", folder), ("other", self.theirs)):
            (self.mine / name).symlink_to(target)
            (self.mine / "code" / name).symlink_to(target / "secret")
        self.world = world
        self.cells = Sandboxes(folder=folder / "nodes", memory_bytes=None, processes=64)
        self.settings = Settings(home=self.home, folders=f"{folder}/projects/{{project}}")

    def submit(self, task: dict[str, Any] | str, caller: Caller = BOB, **rules: Any) -> Submitted:
        """The first event of a job, on a service that has every launcher."""
        services = self.world.services
        services = replace(
            services,
            launchers=dict.fromkeys(Engine, services.launchers[Engine.LOCAL]),
            confinement=replace(confinement_of(self.settings, refusals(self.settings)), **rules),
        )
        text = task if isinstance(task, str) else yaml.safe_dump(task)
        overrides = Overrides(base_dir=str(self.home), home_dir=str(self.home))
        parsed, rendered = read_and_render(text, overrides)
        return submission(services, parsed, rendered, caller=caller, project="nlp", force=True)

    def launch(self, event: Submitted, key: str) -> Launch:
        """The launch that a launcher receives for the job."""
        roots = Folders(self.home, self.settings_roots)
        return Launch(
            key=key,
            job_id="job",
            first_attempt=1,
            task=load(event.task),
            max_failures=1,
            env={Env.TOKEN: "the-jobs-own-token", Env.JOB: "job"},
            secrets=dict.fromkeys(event.spec["secrets"], "a-secret"),
            folders=roots.of_job(event.project, is_confined=event.confined),
        )

    def sent(self, event: Submitted, key: str) -> bytes:
        """All data that the launcher would read from this machine for the job."""
        launch = self.launch(event, key)
        match JobSpec.model_validate(event.spec).engine:
            case Engine.LOCAL:
                there = LaunchDir(self.folder / "local" / key)
                there.create()
                workdir = launch.task.get("workdir")
                local_submission._prepare(there, workdir, self.home, launch.folders)
                return b"".join(
                    p.read_bytes() for p in sorted(there.path.rglob("*")) if _is_file(p)
                )
            case Engine.SLURM:
                return batch_job.pack(launch, PLACE)
            case Engine.SKYPILOT:
                task_body.check_mounts(launch)
                workdir, mounts = launch.task.get("workdir"), launch.task.get("file_mounts")
                is_folder = isinstance(workdir, str)
                files = task_body.WorkdirCopies(self.folder / "sky")
                copy = files.workdir(key, workdir, launch.folders) if is_folder else None
                archive = self.folder / f"{key}.zip"
                own = [copy] if copy else []
                folders = task_body.local_folders({"file_mounts": mounts})
                upload._zip([*own, *folders], archive, launch.folders, own)
                with upload.zipfile.ZipFile(archive) as packed:
                    return b"".join(packed.read(name) for name in packed.namelist())

    @property
    def settings_roots(self) -> tuple[str, ...]:
        return tuple(confinement_of(self.settings, refusals(self.settings)).folders.roots)


def _is_file(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


@pytest.fixture
def machine(world: SimulatedService, tmp_path: Path) -> Machine:
    world.services.users.add_project("nlp", STAGE)
    return Machine(world, tmp_path)


def paths(machine: Machine) -> list[str]:
    """Spellings of a path outside of the member's folder."""
    home, mine, theirs = machine.home, machine.mine, machine.theirs
    return [
        *map(str, (home, machine.folder, home / "launches", home / "secret", theirs, theirs / "secret")),
        *("/", "/etc", "/etc/passwd", "/root/.ssh/id_rsa", "/proc/self/environ", "/proc/self/cwd"),
        *(f"/proc/self/root{home}", f"/{home}", f"{home}/.", f"{mine}/../../home", f"{mine}/../vision"),
        *(f"{mine}/{name}" for name in ("home", "up", "other", "up/home", "home/secret", "other/secret")),
        *(".", "..", "launches", "~", "~root", "~/launches", "$HOME", "${X}/y", f"{mine}/$X", f"{mine}/${{X}}"),
        *(f"file://{home}", f"file://localhost{home}", f"holdfast://wheel{home}", f"local://{home}", f"{home} "),
    ]  # fmt: skip


def check_local(machine: Machine, launch: Launch) -> None:
    """The nodes run under a separate account, without variables of the service."""
    there = LaunchDir(machine.folder / "local" / launch.key)
    order = LocalOrder.from_launch(launch, MarketParameters(), machine.cells)
    env = environment.node_env(order, there, attempt=1, node=0, port=1)

    assert order.cell
    assert order.cell.account >= FIRST_UID
    assert order.nodes <= MAX_LOCAL_NODES
    assert CANARY.decode() not in str(env)
    own = there.node(1, 0)
    assert env[Env.RUN_DIR] == str(own.run)
    assert env[Env.SPOOL] == str(own.spool)
    assert env[process_cleanup.MARK_ENV] == str(there.path)
    assert env[Env.TOKEN] == "the-jobs-own-token"


def check_slurm(machine: Machine, launch: Launch) -> None:
    """The job reveals neither the state directory nor the account. Its files lie in its folder."""
    found = dict(option.partition("=")[::2] for option in batch_job.submit_options(launch, PLACE))
    ours = {"nodes", "ntasks-per-node", "open-mode", "requeue", "no-requeue", "signal"}
    ours |= {"job-name", "comment", "chdir", "output", "export"}

    assert found.keys() <= {f"--{name}" for name in ours | SBATCH_OPTIONS}
    assert found["--job-name"] == launch.key
    assert found["--comment"] == batch_job.job_comment(PLACE.root)
    assert found["--chdir"] == PLACE.launch(launch.key)
    assert found["--export"] == ",".join(batch_job.EXPORTED_ENV)
    with tarfile.open(fileobj=io.BytesIO(batch_job.pack(launch, PLACE))) as tar:
        for member in tar:
            assert member.name.split("/")[0] in {"order", "job.sbatch", "scripts", "workdir"}
            assert ".." not in member.name
            assert member.isfile() or member.isdir() or member.issym()
            assert not member.mode & 0o7000


def check_skypilot(machine: Machine, launch: Launch) -> None:
    """SkyPilot's server receives no part of the job that acts on the server itself."""
    fields = {"token": "hfl_x", "nudge_url": "http://n", "workdir": None, "wheelhouse": Path("/w")}
    task = task_body.build_task(launch, name="hf-job", **fields)
    plain = task_body.build_task(replace(launch, task={"run": "x"}), name="hf-job", **fields)
    clouds = {candidate.cloud for candidate in resource_options(task["resources"])}

    assert task["event_callback"] == plain["event_callback"]
    assert all(name.startswith("HOLDFAST_") for name in task["envs"])
    assert {name: task["envs"][name] for name in plain["envs"]} == plain["envs"]
    assert task["secrets"][Env.TOKEN] == "the-jobs-own-token"
    assert task.get("config", {}).keys() <= CONFIG_KEYS
    assert task.keys().isdisjoint({"api_server_access", "service", "pool", "volumes"})
    assert clouds.isdisjoint({"slurm", "local"})
    assert "$S" not in str(task.get("file_mounts"))


CHECKS = {
    Engine.LOCAL: check_local,
    Engine.SLURM: check_slurm,
    Engine.SKYPILOT: check_skypilot,
}


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_hostile_job_files_reach_no_foreign_data(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", CANARY.decode())
    target = Target(tuple(paths(machine)), str(machine.mine / "code"))
    taken, refused = Counter[Engine](), Counter[str]()
    files = itertools.islice(hostile(target, 1), HOSTILE)
    for number, (category, infra, text) in enumerate(files):
        is_open = infra == "slurm" and category != "resources"
        closed = {} if is_open else {Engine.SLURM: "no"}
        try:
            event = machine.submit(text, refused=closed)
            spec = JobSpec.model_validate(event.spec)
            launch = machine.launch(event, f"job-{number}")
            assert event.confined
            assert CANARY not in machine.sent(event, f"job-{number}"), text
            CHECKS[spec.engine](machine, launch)
        except (BadJobFile, Forbidden, LaunchRefused):
            refused[category] += 1
            continue
        taken[spec.engine] += 1
        check_simulated(machine, launch)
        check_store(machine, spec)

    assert min(taken[engine] for engine in Engine) > HOSTILE // 50, "so that launchers are tried"
    assert refused.keys() >= CATEGORIES.keys() - {"images", "links", "endpoints"}


def check_simulated(machine: Machine, launch: Launch) -> None:
    """The simulated cloud receives the task alone."""
    asyncio.run(machine.world.cloud.submit(launch))

    assert CANARY.decode() not in str(launch.task)


def check_store(machine: Machine, spec: JobSpec) -> None:
    """The service reads a project's folder, or a public server without signing requests."""
    folder = store_folder(spec)
    assert folder is None or Path(folder).resolve().is_relative_to(machine.mine), spec
    store_settings = StoreSettings.from_env(spec.envs)
    try:
        admitted = StorePolicy().admit(store_settings)
    except CheckpointStoreRefused:
        return
    assert admitted.endpoint is None, spec.envs
    assert admitted.profile is None, spec.envs


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_folder_replaced_by_a_symlink_is_not_copied(machine: Machine) -> None:
    for number, infra in enumerate(("local", "slurm", "aws")):
        code = machine.mine / f"late-{number}"
        code.mkdir()
        task = {"run": "x", "resources": {"infra": infra}, "workdir": str(code)}
        event = machine.submit(task, refused={})
        code.rmdir()
        code.symlink_to(machine.home)

        with pytest.raises(LaunchRefused, match="service's own directory"):
            machine.sent(event, f"late-{number}")


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize(("infra", "setting"), [("local", "HOLDFAST_LOCAL_MEMBERS"), ("slurm", "HOLDFAST_SLURM_MEMBERS")])  # fmt: skip
def test_local_and_slurm_launchers_are_for_admins_only(
    machine: Machine, infra: str, setting: str
) -> None:
    task = {"run": "id", "resources": {"infra": infra}}

    for caller in (BOB, LEAD, ONE_PROJECT):
        with pytest.raises(Forbidden, match=setting):
            machine.submit(task, caller)

    assert not machine.submit(task, BOSS).confined
    assert not machine.submit(task, OWNER).confined


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_copy_of_a_confined_job_is_confined(machine: Machine) -> None:
    world, task = machine.world, {"run": "id", "resources": {"infra": "local"}}
    journal = world.services.journal
    for caller, job_id in ((BOB, "jbob"), (OWNER, "jowner")):
        journal.submit(job_id, machine.submit(task, caller, refused={}))
    world.until("jbob", "succeeded")

    copies = {
        job_id: world.http.post(f"/v1/jobs/{job_id}/clone").json()["id"]
        for job_id in ("jbob", "jowner")
    }

    assert {name: journal.submission(copy).confined for name, copy in copies.items()} == {
        "jbob": True,
        "jowner": False,
    }


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_skypilots_own_slurm_and_host_folders_are_refused(machine: Machine) -> None:
    for fields in ({"cloud": "slurm"}, {"infra": "/slurm"}, {"any_of": [{"infra": "slurm/c"}]}):
        with pytest.raises(Forbidden, match="HOLDFAST_SLURM_MEMBERS"):
            machine.submit({"run": "x", "resources": fields})
    with pytest.raises(BadJobFile, match="host_path: is for admins of the service"):
        machine.submit({"run": "x", "volumes": {"/host": {"host_path": "/"}}})
    with pytest.raises(BadJobFile, match="at most 64 nodes"):
        machine.submit({"run": "x", "num_nodes": 65, "resources": {"infra": "local"}}, refused={})


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_refused_workdir_suggests_an_upload(machine: Machine) -> None:
    task = {"run": "x", "workdir": str(machine.theirs), "resources": {"infra": "aws"}}

    with pytest.raises(BadJobFile, match=r"#/workdir: .*; holdfast submit --upload sends"):
        machine.submit(task)


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_owner_may_use_any_folder_except_the_home(machine: Machine) -> None:
    for infra in ("local", "slurm", "aws"):
        task = {"run": "x", "resources": {"infra": infra}}
        for inside in (machine.home, machine.home / "launches", machine.mine / "home"):
            with pytest.raises(BadJobFile, match="the service's own directory"):
                machine.submit({**task, "workdir": str(inside)}, OWNER)

        event = machine.submit({**task, "workdir": str(machine.theirs)}, OWNER)
        around = machine.submit({**task, "workdir": str(machine.folder / "projects")}, OWNER)

        assert CANARY in machine.sent(event, f"owner-{infra}")
        assert CANARY in machine.sent(around, f"around-{infra}")
    with pytest.raises(BadJobFile, match="contains the service's own directory"):
        machine.submit({"run": "x", "file_mounts": {"/x": str(machine.folder)}}, OWNER)


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_copy_of_a_parent_folder_excludes_the_home(machine: Machine) -> None:
    for place in (machine.theirs, machine.folder / "projects"):
        for file in place.glob("secret"):
            file.unlink()

    for infra in ("local", "slurm", "aws"):
        task = {"run": "x", "resources": {"infra": infra}, "workdir": str(machine.folder)}
        event = machine.submit(task, OWNER)
        target = machine.folder.with_name(f"{machine.folder.name}-{infra}")
        target.mkdir()
        machine.folder, kept = target, machine.folder

        assert CANARY not in machine.sent(event, "around")
        machine.folder = kept


def test_settings_that_break_isolation_refuse_local_jobs(tmp_path: Path) -> None:
    allowed = Settings(home=tmp_path, local_members=True)
    url = "http://127.0.0.1:46580"

    def why(**fields: Any) -> str:
        changed = allowed.model_copy(update=fields)
        return confinement_of(changed, refusals(changed)).refused.get(Engine.LOCAL, "")

    assert why() == ""
    assert "HOLDFAST_TRUST_LOOPBACK" in why(trust_loopback=True)
    assert "HOLDFAST_SKYPILOT_TOKEN" in why(skypilot_url=url)
    assert why(skypilot_url="http://skypilot:46580") == ""
    assert confinement_of(allowed, refusals(allowed)).refused.keys() == {Engine.SLURM}
    with pytest.raises(HoldfastError, match="HOLDFAST_FOLDERS: 'data' is not an absolute path"):
        confinement_of(Settings(home=tmp_path, folders="data"), {})
    assert Confinement().refused == {}
