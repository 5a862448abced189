"""Output files of a job on its page."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from holdfast_worker.node.output_collection import OutputUpload
from holdfast_worker.node.output_selection import OutputSelection
from holdfast_worker.storage.directory import DirectoryStore
from playwright.sync_api import Page, expect
from support.simulated_service import SimulatedService
from web.axe import violations

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


def test_output_files_are_listed_and_downloaded(
    world: SimulatedService, url: str, page: Page, tmp_path: Path
) -> None:
    file = f"""
name: tiny
resources: {{infra: local}}
run: holdfast-worker run train.py
holdfast: {{checkpoint: {{store: "file://{tmp_path}/store"}}, outputs: results/}}
"""
    job = world.submit(file)["id"]
    page.goto(f"{url}/jobs/{job}?tab=outputs")
    tab = page.get_by_role("tabpanel")
    expect(tab).to_contain_text("No output files yet.")
    (tmp_path / "work/results").mkdir(parents=True)
    (tmp_path / "work/results/a b.json").write_text("{}")
    (tmp_path / "work/results/etc").symlink_to("/etc")
    selection = OutputSelection(tmp_path / "work")
    selection.add(["results/*"])
    OutputUpload(
        store=DirectoryStore(tmp_path / "store" / job),
        selection=selection,
        epoch=1,
        nonce="0123abcd",
        until_s=time.monotonic() + 60,
    ).send(1, 3)

    other = OutputSelection(tmp_path / "work", node=1)
    other.add(["results/*.json"])
    OutputUpload(
        store=DirectoryStore(tmp_path / "store" / job),
        selection=other,
        epoch=1,
        nonce="0123abcd",
        until_s=time.monotonic() + 60,
    ).send(1, 3)

    page.reload()

    expect(tab).to_contain_text("Attempt 1 exited with code 3 and left 2 files")
    rows = tab.get_by_role("row")
    expect(rows.nth(1)).to_contain_text(re.compile(r"^results/a b\.json\s*0"))
    expect(rows.nth(2)).to_contain_text(re.compile(r"^node-1/results/a b\.json\s*1"))
    expect(tab).to_contain_text("results/etc was left out: it is a link that leaves")
    with page.expect_download() as downloaded:
        tab.get_by_role("link", name="node-1/results/a b.json").click()
    assert downloaded.value.path().read_text() == "{}"
    assert downloaded.value.suggested_filename == "a b.json"
    for scheme, width in (("light", 1440), ("dark", 390)):
        page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
        page.set_viewport_size({"width": width, "height": 900})
        assert not violations(page), scheme
        overflow = page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert overflow <= 0, scheme
