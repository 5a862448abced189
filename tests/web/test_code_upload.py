"""Code that is dropped on the submit page, and the real job that runs it."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Page, expect
from support.live_service import Service
from web.axe import violations

SOON_MS = 60_000


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """A folder on a user's computer."""
    top = tmp_path / "project"
    for name, text in {
        ".gitignore": "data/\n",
        "start.sh": '#!/bin/sh\necho "it says: $(cat src/words.txt)"\nls -d data\n',
        "src/words.txt": "dropped",
        "data/big.bin": "left out",
    }.items():
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_text(text)
    return top


def drop(page: Page, path: Path) -> None:
    """Drop a folder on the page, as a file manager does."""
    target = page.get_by_text("Drop a folder or a zip here.")
    target.scroll_into_view_if_needed()
    place = target.bounding_box()
    assert place
    browser = page.context.new_cdp_session(page)
    data = {"items": [], "files": [str(path)], "dragOperationsMask": 1}
    for kind in ("dragEnter", "dragOver", "drop"):
        spot = {"x": place["x"] + 5, "y": place["y"] + 5}
        browser.send("Input.dispatchDragEvent", {"type": kind, **spot, "data": data})


@pytest.mark.full
def test_dropped_folder_is_uploaded_and_run(service: Service, code: Path, page: Page) -> None:
    page.goto(f"{service.environment['HOLDFAST_URL']}/submit")
    page.get_by_role("textbox", name="Job file").fill(
        "name: dropped\nresources: {infra: local}\nrun: ./start.sh\n"
    )

    drop(page, code)
    region = page.get_by_role("region", name="Code")
    expect(region.get_by_role("status")).to_contain_text("✓ project: 3 files, 71 B, uploaded.")
    region.get_by_text("Excluded: 1 file or folder").click()
    expect(region.get_by_role("listitem")).to_have_text("data/")
    wrong = violations(page)
    page.get_by_role("button", name="Submit", exact=True).click()
    expect(page.get_by_role("heading", level=1, name="dropped")).to_be_visible()
    page.get_by_role("tab", name="Logs").click()

    log = page.get_by_role("region", name="Log", exact=True)
    expect(log).to_contain_text("it says: dropped", timeout=SOON_MS)
    expect(log).to_contain_text("cannot access 'data'")
    assert not wrong
    # The same folder again, by keyboard: the service has all files already.
    page.goto(f"{service.environment['HOLDFAST_URL']}/submit")
    sent: list[str] = []
    page.on("request", lambda request: sent.append(request.url.partition("/v1/")[2]))
    with page.expect_file_chooser() as asked:
        page.get_by_role("button", name="Choose folder").press("Enter")
    asked.value.set_files(code)
    expect(region.get_by_role("status")).to_contain_text("✓ project: 3 files")
    assert "code/trees" in sent
    assert not [path for path in sent if path.startswith("code/pieces")]
    region.get_by_role("button", name="Remove the code").click()
    expect(region.get_by_role("status")).to_be_empty()
