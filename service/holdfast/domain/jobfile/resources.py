"""SkyPilot's resource options as models, and the checks that all models of a job file share."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

NOT_TEXT: Final = "contains half of a surrogate pair, which is not text; remove it"


def deliverable(text: str) -> str:
    """Check that a program can receive the text."""
    if "\0" in text:
        raise ValueError("contains a NUL character, which programs cannot receive; remove it")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(NOT_TEXT) from error
    return text


Text = Annotated[str, AfterValidator(deliverable)]
Scalar = str | int | float | None


def listed(value: Any) -> Any:
    """The value as a list."""
    return value if isinstance(value, list) else [value]


def _recovery(value: Any) -> Any:
    return {"strategy": value} if isinstance(value, str) else value


def if_given(check: Callable[[Any], Any]) -> AfterValidator:
    """A check that accepts null, which means unset everywhere."""
    return AfterValidator(lambda value: None if value is None else check(value))


def _accelerators(value: Any) -> Any:
    counts = value.values() if isinstance(value, Mapping) else ()
    numbers = all(n is None or (_is_number(n) and n > 0) for n in counts)
    names = value if isinstance(value, list) else ()
    if not isinstance(value, str | Mapping | list) or not numbers or not all(map(is_text, names)):
        raise ValueError(f"{value!r} is not an accelerator; write one such as A100:8, or a list")
    return value


def _ports(value: Any) -> Any:
    items = value if isinstance(value, list) else [value]
    if not all(isinstance(item, int | str) and not isinstance(item, bool) for item in items):
        raise ValueError(f"{value!r} is not a port; write one such as 8080 or 8080-8090, or a list")
    return value


def _autostop(value: Any) -> Any:
    words = {"idle_minutes", "down", "wait_for", "hook", "hook_timeout"}
    if isinstance(value, Mapping):
        if odd := sorted(map(str, value.keys() - words)):
            raise ValueError(f"unknown key {odd[0]!r}; known keys are {', '.join(sorted(words))}")
    elif not isinstance(value, bool | int) and not re.fullmatch(r"\d+[mhdw]?", str(value)):
        raise ValueError(f"{value!r} is not an autostop time; write minutes such as 30, or 2h")
    return value


def _image(value: Any) -> Any:
    if not isinstance(value, str | Mapping):
        raise ValueError(f"{value!r} is not an image; write its id, or a mapping of regions to ids")  # noqa: TRY004
    return value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_text(value: Any) -> bool:
    """Whether the value is a text."""
    return isinstance(value, str)


class SpecModel(BaseModel):
    """Base of frozen models that reject unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Strict(SpecModel):
    """Base of models that keep values as written: implicit type conversion is an error."""

    model_config = ConfigDict(strict=True)


class Recovery(Strict):
    """SkyPilot's recovery options after the loss of nodes or a program failure."""

    strategy: str | None = None
    max_restarts_on_errors: Annotated[int, Field(ge=0, le=99)] | None = None
    recover_on_exit_codes: Annotated[
        list[Annotated[int, Field(ge=0, le=255)]], BeforeValidator(listed)
    ] = Field(default_factory=list)


class Nodes(Strict):
    """SkyPilot 0.14 options of one node type."""

    infra: str | None = None
    use_spot: bool | None = None
    cloud: str | None = None
    region: str | None = None
    zone: str | None = None
    accelerators: Annotated[Any, if_given(_accelerators)] = None
    accelerator_args: dict[str, Any] | None = None
    cpus: Scalar = None
    memory: Scalar = None
    instance_type: str | None = None
    disk_size: str | int | None = None
    disk_tier: str | None = None
    local_disk: str | None = None
    network_tier: str | None = None
    ports: Annotated[Any, if_given(_ports)] = None
    labels: dict[str, Text] | None = None
    autostop: Annotated[Any, if_given(_autostop)] = None
    image_id: Annotated[Any, if_given(_image)] = None
    volumes: list[dict[str, Any]] | None = None
    priority: Annotated[int, Field(ge=-1000, le=1000)] | None = None
    priority_class: str | None = None
    max_hourly_cost: Annotated[float, Field(gt=0)] | None = None
    job_recovery: Annotated[Recovery, BeforeValidator(_recovery)] | None = None


class Resources(Nodes):
    """The `resources:` section: one node type, or several alternatives."""

    any_of: list[Nodes] | None = None
    ordered: list[Nodes] | None = None
