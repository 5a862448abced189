"""What travels over the API when two jobs are put side by side. The client reads these, too."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from holdfast.api.schema import Schema


class DifferenceOut(Schema):
    """One thing that is other."""

    kind: str = Field(
        description="transport, machines, stack, code, configuration, packages or surroundings."
    )
    key: str = Field(description="Its place in the manifest; of a package, its name after `lock.`.")
    before: Any = Field(description="In the first job; null where it was not told.")
    after: Any = Field(description="In the other job.")


class DiffOut(Schema):
    """Two jobs side by side."""

    before: str = Field(description="Id of the first.")
    after: str = Field(description="Id of the other.")
    steps_per_hour_before: float | None = Field(
        description="Steps that were kept, for each hour of useful time; null while there are none."
    )
    steps_per_hour_after: float | None
    differences: list[DifferenceOut] = Field(description="What explains most, first.")
