"""Put built pages beside those of other versions, and write what the switcher of versions reads.

    python tools/publish_docs.py docs/_build/html SITE

copies the pages to SITE/VERSION, lists all versions in SITE/versions.json, and lets SITE itself lead to the newest.
DOCS_ADDRESS, where SITE is served, must be as it was when the pages were built: they know where the list is.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from pathlib import Path

from packaging.version import InvalidVersion, Version

import pymc_rmhmc

REDIRECT = """<!DOCTYPE html>
<html lang="en">
<head><meta charset="utf-8"><title>pymc_rmhmc</title><meta http-equiv="refresh" content="0; url={newest}/"></head>
<body><a href="{newest}/">The documentation of pymc_rmhmc {newest}</a></body>
</html>
"""


def publish(pages: Path, site: Path, version: str, address: str) -> None:
    """Put the pages of one version on a site, in the place of those that it has of it."""
    place = site / version
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(pages, place)
    known = versions(site)
    (site / "versions.json").write_text(json.dumps(entries(known, address), indent=2) + "\n")
    (site / "index.html").write_text(REDIRECT.format(newest=newest(known)))
    # GitHub would leave out folders whose names begin with an underscore.
    (site / ".nojekyll").touch()


def versions(site: Path) -> list[Version]:
    """List the versions that a site has pages of, the highest first."""
    found = []
    for index in site.glob("*/index.html"):
        try:
            found.append(Version(index.parent.name))
        except InvalidVersion:
            continue
    return sorted(found, reverse=True)


def newest(known: list[Version]) -> Version:
    """Return the highest version that is no release candidate, or the highest of all where there is none."""
    return next((each for each in known if not each.is_prerelease), known[0])


def entries(known: list[Version], address: str) -> list[dict[str, object]]:
    """List what the theme's switcher shows: the newest version is the one that old pages point to."""
    best = newest(known)
    return [
        {
            "version": str(each),
            "url": f"{address.rstrip('/')}/{each}/",
            "preferred": each == best,
        }
        for each in known
    ]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", type=Path, help="the built pages")
    parser.add_argument("site", type=Path, help="a folder that holds the pages of all versions")
    asked = parser.parse_args()
    where = os.environ.get("DOCS_ADDRESS")
    if not where:
        sys.exit("DOCS_ADDRESS is not set: give it the address at which the site is served.")
    publish(asked.pages, asked.site, pymc_rmhmc.__version__, where)
