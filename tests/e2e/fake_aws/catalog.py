"""SkyPilot's price lists for AWS, as files that SkyPilot treats as hand-made.

SkyPilot never downloads those again. The figures are from its own catalog.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

VERSION: Final = "v8"
"""`sky.skylet.constants.CATALOG_SCHEMA_VERSION` of 0.14.1."""

ZONES: Final[Mapping[str, tuple[str, ...]]] = {
    "us-east-1": ("use1-az1", "use1-az2", "use1-az4", "use1-az6"),
    "us-east-2": ("use2-az1", "use2-az2", "use2-az3"),
    "us-west-2": ("usw2-az1", "usw2-az2", "usw2-az3"),
    "eu-north-1": ("eun1-az1", "eun1-az3"),
}
REGIONS: Final = tuple(ZONES)

_VMS: Final = (
    *("InstanceType", "AcceleratorName", "AcceleratorCount", "vCPUs", "MemoryGiB", "GpuInfo"),
    *("Price", "SpotPrice", "Region", "AvailabilityZone", "Arch"),
)
_IMAGES: Final = ["Tag", "Region", "OS", "OSVersion", "ImageId", "CreationDate", "BaseImageId"]
_IMAGE_TAGS: Final = (
    "skypilot:custom-gpu-ubuntu-cuda13",
    "skypilot:custom-gpu-ubuntu",
    "skypilot:custom-cpu-ubuntu",
)
# SkyPilot reads the lists of all clouds when it searches for an accelerator.
_OTHER_CLOUDS: Final = (
    *("azure", "cudo", "do", "fluidstack", "gcp", "hyperbolic", "ibm", "lambda", "mithril"),
    *("nebius", "oci", "paperspace", "primeintellect", "runpod", "scp", "seeweb", "shadeform"),
    *("slurm", "vast", "verda", "yotta"),
)


@dataclass(frozen=True, slots=True)
class Gpus:
    """An instance type with accelerators, its on-demand prices by region and spot prices by zone."""

    type: str
    name: str
    count: int
    vcpus: int
    memory_gib: int
    chip: str
    chip_mib: int
    prices: Mapping[str, tuple[float, Mapping[str, float | None]]]

    @property
    def info(self) -> str:
        """The column that describes the accelerators."""
        each = f"'SizeInMiB': {self.chip_mib}"
        chip = f"'Name': '{self.chip}', 'Manufacturer': 'NVIDIA', 'Count': {self.count}, 'MemoryInfo': {{{each}}}"
        return f"{{'Gpus': [{{{chip}}}], 'TotalGpuMemoryInMiB': {self.count * self.chip_mib}}}"


GPUS: Final = (
    Gpus(
        *("p4d.24xlarge", "A100", 8, 96, 1152, "A100", 40960),
        prices={
            "us-east-1": (
                21.957642,
                {
                    "use1-az1": 2.4655,
                    "use1-az2": 8.1915,
                    "use1-az4": 8.1203,
                    "use1-az6": 7.8799,
                },
            ),
            "us-east-2": (
                21.95764,
                {"use2-az1": 6.0374, "use2-az2": 6.0965, "use2-az3": 21.8535},
            ),
            "us-west-2": (
                21.95764,
                {
                    "usw2-az1": 7.9992,
                    "usw2-az2": 8.2259,
                    "usw2-az3": 9.7315,
                    "usw2-az4": 8.4794,
                },
            ),
            "eu-north-1": (23.71569, {"eun1-az3": 6.1657}),
        },
    ),
    Gpus(
        *("p4de.24xlarge", "A100-80GB", 8, 96, 1152, "A100", 81920),
        prices={
            "us-east-1": (27.44705, {"use1-az4": 9.9734, "use1-az6": 8.6505}),
            "us-west-2": (
                27.44705,
                {"usw2-az1": 10.9991, "usw2-az2": 11.0144, "usw2-az3": 10.3338},
            ),
        },
    ),
    Gpus(
        *("p5.48xlarge", "H100", 8, 192, 2048, "H100", 81920),
        prices={
            "us-east-1": (55.04, {"use1-az2": 19.2531, "use1-az6": 17.6289}),
            "us-east-2": (55.04, {"use2-az1": 11.2543, "use2-az2": 11.5616}),
            "us-west-2": (55.04, {"usw2-az1": 12.6935, "usw2-az2": 12.9785}),
        },
    ),
    Gpus(
        *("p5.4xlarge", "H100", 1, 16, 256, "H100", 81920),
        prices={"us-east-1": (6.88, {"use1-az1": None})},
    ),
)
CPUS: Final = (  # Type, vCPUs, GiB, on-demand price. Spot prices are two fifths of it everywhere.
    ("m6i.large", 2, 8, 0.096),
    ("m6i.xlarge", 4, 16, 0.192),
    ("m6i.2xlarge", 8, 32, 0.384),
)
_SPOT_OF_CPUS: Final = 0.4


def write(home: Path, image: str) -> None:
    """Write the lists below `home`, with `image` as every machine image.

    A running API server keeps the lists that it has read.
    """
    folder = home / ".sky" / "catalogs" / VERSION
    _table(folder / "aws" / "vms.csv", _VMS, [*_gpu_rows(), *_cpu_rows()])
    dated = ["ubuntu", "22.04", image, "20241104", image]
    images = [[tag, region, *dated] for tag in _IMAGE_TAGS for region in REGIONS]
    _table(folder / "aws" / "images.csv", _IMAGES, images)
    for quota in ("instance", "accelerator"):
        columns = ("InstanceType", "OnDemandCode", "SpotInstanceCode")
        _table(folder / "aws" / f"{quota}_quota_mapping.csv", columns, [])
    names = ("A100", "A100-80GB", "H100", "V100", "L4", "T4")
    columns = ("AcceleratorName", "Clouds", "Regions")
    _table(folder / "common" / "accelerators.csv", columns, [[n, "AWS", ""] for n in names])
    memory = [["A100", 40, "NVIDIA"], ["A100-80GB", 80, "NVIDIA"], ["H100", 80, "NVIDIA"]]
    columns = ("Accelerator", "MemoryGB", "Manufacturer")
    _table(folder / "common" / "metadata.csv", columns, memory)
    for cloud in _OTHER_CLOUDS:
        _table(folder / cloud / "vms.csv", _VMS, [])


def _gpu_rows() -> Iterator[list[object]]:
    for gpus in GPUS:
        size = [float(gpus.count), float(gpus.vcpus), float(gpus.memory_gib), gpus.info]
        for region, (on_demand, zones) in gpus.prices.items():
            for zone, spot in zones.items():
                prices = [on_demand, "" if spot is None else spot]
                yield [gpus.type, gpus.name, *size, *prices, region, zone, "x86_64"]


def _cpu_rows() -> Iterator[list[object]]:
    for kind, vcpus, gib, on_demand in CPUS:
        for region, zones in ZONES.items():
            for zone in zones:
                prices = [on_demand, round(on_demand * _SPOT_OF_CPUS, 4)]
                size = ["", "", float(vcpus), float(gib), ""]
                yield [kind, *size, *prices, region, zone, "x86_64"]


def _table(file: Path, columns: Iterable[str], rows: Iterable[Iterable[object]]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", newline="") as text:
        writer = csv.writer(text)
        writer.writerow(columns)
        writer.writerows(rows)
