"""What the build of the fake cloud refuses at once, instead of failing on its hosts half an hour later."""

from __future__ import annotations

from pathlib import Path

import pytest
from e2e.fake_aws.build import CannotBuild, demand_visible


@pytest.mark.parametrize("folder", ["/tmp/cloud", "/run/user/0/cloud", "/mnt/disk/cloud"])
def test_a_folder_that_hosts_cannot_see_is_refused(folder: str) -> None:
    with pytest.raises(CannotBuild, match=f"{folder} is below .*, so hosts would not find it"):
        demand_visible(Path("/srv/python"), Path(folder))


def test_a_folder_elsewhere_is_visible() -> None:
    demand_visible(Path("/srv/cloud"), Path("/var/tmp/cloud"), Path("/tmpfiles"))
