"""Output files of several nodes, in real runs: each file arrives once, and no node ends before the others have sent theirs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from holdfast_worker.protocol.environment import Exit
from holdfast_worker.protocol.output_files import (
    OUTPUT_COMMITS,
    OutputCollection,
    nodes_prefix,
    parse_commit_key,
)
from holdfast_worker.storage.base import Store
from holdfast_worker.storage.directory import DirectoryStore
from support.cloud_servers import CloudServer
from worker.support.groups_driver import Groups
from worker.support.nodes_driver import Nodes
from worker.support.run_driver import TIMEOUT_S, read_until, wait_until
from worker.support.s3_servers import RUNS, credentials, moto, open_bucket

SCRIPT = str(Path(__file__).parents[1] / "scripts/output_files.py")
OUTPUTS = {"HOLDFAST_OUTPUTS": '["results/*.json"]'}


def run_of(path: Path, nodes: int = 2, *, is_shared: bool = False, **extra: str) -> Nodes:
    """A run whose nodes have directories of their own, or share one."""
    return Nodes(
        path,
        nodes,
        script=(SCRIPT, "6", str(path)),
        workdir=lambda node: path / ("shared" if is_shared else f"n{node}"),
        **{**OUTPUTS, **extra},
    )


def sent(store: Store) -> dict[int, OutputCollection]:
    """What each node has sent in the newest attempt."""
    commits = {
        commit: key for key in store.list(OUTPUT_COMMITS) if (commit := parse_commit_key(key))
    }
    newest = max((commit.epoch for commit in commits), default=0)
    return {
        commit.node: OutputCollection.parse(store.get(key), *commit)
        for commit, key in sorted(commits.items())
        if commit.epoch == newest
    }


def contents(store: Store) -> dict[tuple[int, str], str]:
    """Content by node and path."""
    return {
        (node, file.path): "".join(
            store.get(each.part_key(file, part)).decode() for part in file.parts
        )
        for node, each in sent(store).items()
        for file in each.files
    }


def own_files(nodes: Sequence[int]) -> dict[tuple[int, str], str]:
    """What nodes with one rank each leave, each in its own directory."""
    return {(node, f"results/rank-{node}.json"): f"of rank {node}" for node in nodes}


def test_files_of_all_nodes_are_collected(tmp_path: Path) -> None:
    nodes = run_of(tmp_path)
    for node in (0, 1):
        results = tmp_path / f"n{node}/results"
        results.mkdir(parents=True)
        (results / "same.json").write_text(f"node {node}")
        (results / "etc.json").symlink_to("/etc/passwd")

    log = nodes.run()

    store = DirectoryStore(tmp_path / "store/lesson")
    same = {(node, "results/same.json"): f"node {node}" for node in (0, 1)}
    assert contents(store) == own_files([0, 1]) | same
    assert [each.left_out[0].path for each in sent(store).values()] == ["results/etc.json"] * 2
    assert log.count("output file results/etc.json is left out: it is a link that leaves") == 2


def test_files_in_a_shared_directory_arrive_once(tmp_path: Path) -> None:
    nodes = run_of(tmp_path, 3, is_shared=True)
    results = tmp_path / "shared/results"
    results.mkdir(parents=True)
    (results / "etc.json").symlink_to("/etc/passwd")
    for number in range(5):
        (results / f"before-{number}.json").write_text("x")

    log = nodes.run()

    found = sent(DirectoryStore(tmp_path / "store/lesson"))
    paths = [file.path for each in found.values() for file in each.files]
    names = [f"results/before-{n}.json" for n in range(5)] + [
        f"results/rank-{n}.json" for n in range(3)
    ]
    assert sorted(paths) == names
    assert {file.path for file in found[0].files} >= {*names[:6]}
    assert [left.path for each in found.values() for left in each.left_out] == ["results/etc.json"]
    assert log.count("output files are those of other nodes") == 2


def test_nodes_of_a_failed_attempt_send_their_files(tmp_path: Path) -> None:
    nodes = run_of(tmp_path, HOLDFAST_MAX_RESTARTS="0")

    nodes.start("--error", "1:3", "--connected")
    logs = [wrapper.communicate(timeout=TIMEOUT_S)[1] for wrapper in nodes.wrappers]

    store = DirectoryStore(tmp_path / "store/lesson")
    assert [wrapper.returncode for wrapper in nodes.wrappers] == [Exit.FAILED] * 2, logs
    assert set(contents(store)) >= {(1, "results/rank-1.json")}
    assert {node: each.exit_code for node, each in sent(store).items()}[0] == Exit.FAILED


def test_preempted_nodes_send_nothing(tmp_path: Path) -> None:
    nodes = run_of(tmp_path)
    nodes.start("--hold", "3")
    wait_until(lambda: nodes.is_held(3))

    for wrapper in nodes.wrappers:
        wrapper.terminate()
    logs = [wrapper.communicate(timeout=TIMEOUT_S)[1] for wrapper in nodes.wrappers]

    assert [wrapper.returncode for wrapper in nodes.wrappers] == [Exit.PREEMPTED] * 2, logs
    assert not [*(tmp_path / "store/lesson").glob("outputs/**/*")]


def test_node_waits_while_another_sends_to_s3(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The launcher would end all nodes soon after the first one has ended."""
    with moto() as (endpoint, gate):
        store = open_bucket(endpoint, monkeypatch)
        nodes = run_of(tmp_path, **credentials(endpoint), HOLDFAST_STORE=RUNS)
        gate.close_for("outputs/data/e1-")

        nodes.start()
        nodes.release()
        wait_until(lambda: f"{nodes_prefix(1)}000001.done" in store.list(nodes_prefix(1)))
        before = contents(store)
        read_until(nodes.wrappers[1], "waiting for the output files of node 0")
        gate.open()
        nodes.wrappers[1].wait(TIMEOUT_S)
        after = contents(store)
        nodes.finish()

    assert before == own_files([1])
    assert after == own_files([0, 1])


@pytest.mark.full
def test_files_of_nodes_arrive_in_a_container_of_azurite(
    azurite: CloudServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = azurite.open(monkeypatch, "outputs-of-nodes")
    url = azurite.runs.replace("/runs", "/outputs-of-nodes")

    run_of(tmp_path, **azurite.variables, HOLDFAST_STORE=url).run()

    assert contents(store) == own_files([0, 1])


def test_script_without_run_uses_the_epoch_of_node_0(tmp_path: Path) -> None:
    """The launcher gives none, so that node 0 claims one in the store."""
    script = tmp_path / "plain.py"
    script.write_text(
        "import os, pathlib\n"
        "pathlib.Path('results').mkdir(exist_ok=True)\n"
        "rank = os.environ['RANK']\n"
        "pathlib.Path(f'results/rank-{rank}.json').write_text(f'of rank {rank}')\n"
    )
    nodes = Nodes(
        tmp_path,
        2,
        script=(str(script),),
        workdir=lambda node: tmp_path / f"n{node}",
        HOLDFAST_EPOCH="",
        **OUTPUTS,
    )

    nodes.run()
    first = contents(DirectoryStore(tmp_path / "store/lesson"))
    nodes.run()

    store = DirectoryStore(tmp_path / "store/lesson")
    assert first == contents(store) == own_files([0, 1])
    assert {each.epoch for each in sent(store).values()} == {2}
    keys = store.list("outputs/")
    assert all("000000000002" in key or "e2-" in key for key in keys), keys


def test_host_sends_the_files_of_a_missing_node(tmp_path: Path) -> None:
    """Its ranks ran in the directory of their host, which does not wait for the lost node either."""
    nodes = run_of(tmp_path, 3, HOLDFAST_NODE_START="0", HOLDFAST_MIN_NODES="1")
    nodes.start("--hold", "3", "--pause", "0.1")
    wait_until(lambda: nodes.would_wait and nodes.is_held(3))

    nodes.kill(2)
    log = nodes.finish_without(2)

    found = contents(DirectoryStore(tmp_path / "store/lesson"))
    assert found == own_files([0, 1]) | {(1, "results/rank-2.json"): "of rank 2"}
    assert "not waiting any longer" not in log


def test_nodes_of_several_groups_send_their_files(tmp_path: Path) -> None:
    groups = Groups(
        tmp_path,
        (1, 2),
        script=(SCRIPT, "6", str(tmp_path)),
        has_workdirs=True,
        **OUTPUTS,
    )
    with groups.opened():
        groups.start()
        groups.finish()

    assert contents(DirectoryStore(tmp_path / "store/lesson")) == own_files([0, 1, 2])
