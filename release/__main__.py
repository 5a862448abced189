"""`make release`: builds every file of a release in one folder, and checks them."""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path
from typing import Final

from release import checks, empty_environment, packages, sbom
from release.checks import ReleaseError

ROOT: Final = Path(__file__).parents[1]
TOOLS: Final = ROOT / "build/release-tools/bin"
HELM: Final = ROOT / "build/chart/bin/helm"
DOCS: Final = ROOT / "service/holdfast/docs_site"


def main() -> int:
    """Build the release that the arguments describe."""
    parser = argparse.ArgumentParser(prog="python -m release", description=__doc__)
    parser.add_argument(
        "--draft", action="store_true", help="also build what is not committed or not dated"
    )
    parser.add_argument("--no-image", action="store_true", help="leave the image out")
    parser.add_argument("--no-check", action="store_true", help="do not install the wheel")
    given = parser.parse_args()
    try:
        folder = build(
            is_draft=given.draft, has_image=not given.no_image, is_checked=not given.no_check
        )
    except ReleaseError as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    print(f"The release is in {folder.relative_to(ROOT)}:")
    print((folder / packages.SUMS).read_text(), end="")
    return 0


def build(*, is_draft: bool, has_image: bool, is_checked: bool) -> Path:
    """Build the release; return its folder.

    Raises:
        ReleaseError: it cannot be built, or one of its files does not work.
    """
    version = checks.version_of(ROOT)
    checks.check_copies(ROOT, version)
    notes = checks.release_notes(ROOT, version, is_draft=is_draft)
    if not is_draft:
        checks.check_tree(ROOT)
    if has_image:
        packages.require_buildah()
        _warn_of_loose_images()
    else:
        _print_loudly("The image is left out, as IMAGE=no demands: this release is not complete.")
    epoch = checks.commit_time(ROOT)
    folder = ROOT / ("build/release-draft" if is_draft else f"dist/{version}")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    print(f"building Holdfast {version} of commit {checks.commit_of(ROOT)[:12]}")
    wheel, _ = packages.build_distributions(ROOT, folder, epoch)
    packages.package_chart(HELM, ROOT / "deploy/chart", folder, epoch)
    packages.archive_folder(DOCS, folder / f"holdfast-docs-{version}.tar.gz", epoch)
    sbom.write_sbom(ROOT, TOOLS, folder / f"holdfast-{version}.cdx.json", version)
    (folder / "RELEASE_NOTES.md").write_text(notes)
    if has_image:
        packages.build_image(
            ROOT, folder / f"holdfast-{version}-image.tar", _labels(version), epoch
        )
    if is_checked:
        print("installing the wheel into an empty environment")
        empty_environment.check_wheel(wheel, ROOT / "requirements.lock", version)
    packages.write_checksums(folder)
    return folder


def _labels(version: str) -> dict[str, str]:
    """What only a release knows of its image; the Dockerfile has the other labels."""
    return {
        "org.opencontainers.image.version": version,
        "org.opencontainers.image.revision": checks.commit_of(ROOT),
    }


def _warn_of_loose_images() -> None:
    if loose := checks.images_without_digest(ROOT):
        _print_loudly(
            f"Images without a digest: {', '.join(loose)}. A registry may change what their tags name; "
            "write the digests that the registry reports behind them, as in docs/decisions/0077."
        )


def _print_loudly(text: str) -> None:
    print(f"\n*** {text} ***\n", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
