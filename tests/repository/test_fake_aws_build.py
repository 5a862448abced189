"""The build of the fake cloud refuses unsuitable folders before its hosts fail on them."""

from __future__ import annotations

from pathlib import Path

import pytest
from e2e.fake_aws.build import CannotBuild, demand_visible


@pytest.mark.parametrize("folder", ["/tmp/cloud", "/run/user/0/cloud", "/mnt/disk/cloud"])
def test_folder_invisible_to_hosts_is_refused(folder: str) -> None:
    with pytest.raises(CannotBuild, match=f"{folder} is below .*, so hosts would not find it"):
        demand_visible(Path("/srv/python"), Path(folder))


def test_folder_on_the_root_file_system_is_visible() -> None:
    demand_visible(Path("/srv/cloud"), Path("/var/tmp/cloud"), Path("/tmpfiles"))
