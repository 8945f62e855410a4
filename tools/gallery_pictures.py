"""Make the small pictures on the gallery's cards, from the pages as they were built.

``python tools/gallery_pictures.py docs/_build/html`` after ``DOCS_EXECUTION=force make docs``.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).parent.parent
PAGES = ROOT / "docs" / "gallery"
CARDS = ROOT / "docs" / "_static" / "cards"
SIZE, COLOURS = (480, 260), 48


def main() -> None:
    """Write one picture for each page that has one in the site."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("site", type=Path, help="the folder with the built pages")
    site = parser.parse_args().site
    CARDS.mkdir(exist_ok=True)
    for page in sorted(PAGES.glob("*.md")):
        found = picture_of(page, site / "gallery" / f"{page.stem}.html")
        if found is not None:
            card(found).save(CARDS / f"{page.stem}.png", optimize=True)
            print(page.stem)


def picture_of(page: Path, built: Path) -> Path | None:
    """Return the file of the picture with which a page begins, by its alternative text."""
    said = re.search(r"^:alt: (.+)$", page.read_text(), re.MULTILINE)
    if said is None or not built.exists():
        return None
    for tag in re.findall(r"<img[^>]*>", built.read_text()):
        source, alt = (re.search(rf'{name}="([^"]*)"', tag) for name in ("src", "alt"))
        if source and alt and alt[1][:20] == said[1][:20]:
            return (built.parent / source[1]).resolve()
    return None


def card(path: Path) -> Image.Image:
    """Return a picture as large as a card, on white, in few colours."""
    picture = Image.open(path).convert("RGB")
    picture.thumbnail(SIZE, Image.Resampling.LANCZOS)
    whole = Image.new("RGB", SIZE, "white")
    whole.paste(picture, tuple((a - b) // 2 for a, b in zip(SIZE, picture.size, strict=True)))
    return whole.quantize(COLOURS)


if __name__ == "__main__":
    main()
