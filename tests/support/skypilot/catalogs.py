"""Price lists of GCP, Azure and Kubernetes for SkyPilot's optimizer, as files that SkyPilot treats as hand-made.

The columns and the prices of GCP's hosts are those of SkyPilot's public catalog; only some nodes and regions are here.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Final

_IMAGES: Final = ("Tag", "Region", "OS", "OSVersion", "ImageId", "CreationDate")
_NODES: Final = (
    *("InstanceType", "vCPUs", "MemoryGiB", "AcceleratorName", "AcceleratorCount", "GpuInfo"),
    "Region",
)
_GCP: Final = (*_NODES, "AvailabilityZone", "Price", "SpotPrice")
_AZURE: Final = (*_NODES, "Price", "SpotPrice", "Generation")

_GCP_HOSTS: Final = {
    # Type: processors, memory in GiB, GPUs, and the prices of the host without its GPUs.
    "a2-highgpu-1g": (12, 85, 1, 0.73948, 0.36975),
    "a2-highgpu-4g": (48, 340, 4, 2.95791, 1.479),
    "a2-highgpu-8g": (96, 680, 8, 5.91582, 2.958),
}
_GCP_ZONES: Final = {
    # Zone: prices of one A100.
    "us-central1-a": (2.933908, 1.466954),
    "us-central1-b": (2.933908, 1.320258),
    "europe-west4-a": (2.933908, 1.76034),
}
_AZURE_NODES: Final = {
    # Type and region: processors, memory in GiB, GPUs, and both prices.
    ("Standard_ND96asr_v4", "eastus"): (96, 900, 8, 27.197, 13.5985),
    ("Standard_ND96asr_v4", "westus2"): (96, 900, 8, 27.197, 10.8788),
}


def write_catalogs(home: Path) -> Path:
    """Write the price lists below a home directory of SkyPilot, and return the directory that contains one for each cloud."""
    catalogs = home / ".sky/catalogs/v8"
    _write(
        catalogs / "common/accelerators.csv",
        ["AcceleratorName", "Clouds", "Regions"],
        [["A100", "Azure,GCP", ""]],
    )
    _write(
        catalogs / "common/metadata.csv",
        ["Accelerator", "MemoryGB", "Manufacturer"],
        [["A100", "40GB", "NVIDIA"]],
    )
    _write(catalogs / "gcp/vms.csv", _GCP, _gcp_rows())
    _write(
        catalogs / "gcp/images.csv",
        [*_IMAGES, "BaseImageId"],
        _image_rows("projects/images/global/images/{}", "base"),
    )
    _write(catalogs / "azure/vms.csv", _AZURE, _azure_rows())
    _write(
        catalogs / "azure/images.csv", _IMAGES, _image_rows("/CommunityGalleries/gallery/images/{}")
    )
    _write(catalogs / "kubernetes/images.csv", _IMAGES, _image_rows("registry.example.com/{}:1"))
    return catalogs


def _gcp_rows() -> list[list[object]]:
    """As in the public list: a host and its GPUs are separate rows, whose prices add up."""
    rows = list[list[object]]()
    for zone, (price, spot) in _GCP_ZONES.items():
        region = zone.rpartition("-")[0]
        for name, (cpus, memory, count, host, host_spot) in _GCP_HOSTS.items():
            rows.append([name, cpus, memory, "", "", "", region, zone, host, host_spot])
            rows.append(["", "", "", "A100", count, "", region, zone, count * price, count * spot])
    return rows


def _azure_rows() -> list[list[object]]:
    return [
        [name, cpus, memory, "A100", count, "", region, price, spot, "V2"]
        for (name, region), (cpus, memory, count, price, spot) in _AZURE_NODES.items()
    ]


def _image_rows(image: str, *more: str) -> list[list[object]]:
    return [
        [f"skypilot:{name}", "", "ubuntu", "22.04", image.format(name), "20260603", *more]
        for name in (
            *("custom-gpu-ubuntu-2204-cuda13", "custom-gpu-ubuntu-2204", "custom-cpu-ubuntu-2204"),
            *("gpu-ubuntu-2204", "custom-gpu-ubuntu-v2", "custom-gpu-ubuntu-2204-v1"),
        )
    ]


def _write(file: Path, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", newline="") as stream:
        csv.writer(stream).writerows([columns, *rows])
