"""Count how the pages read, and look for terms that these pages do not use: run `python tools/prose.py`.

`--pages` lists the pages, the longest sentences first; `--limit WORDS` fails above so many words a sentence.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
# What one thing is called here, by what it is not called. The glossary has the words that are used.
TERMS = {
    r"hyper-parameters?": "hyperparameter",
    r"length[- ]scales?": "lengthscale",
    r"mass[- ]matrices": "metrics, or mass matrix of another sampler",
    r"burn-?in": "tuning",
    r"warm-?up": "tuning",
    r"effective samples": "effective draws",
    r"posterior samples?": "draws",
    r"marginal likelihood of the model": "evidence",
    r"non centred|noncentred": "non-centred",
    r"data ?set's": "data's",
    r"utili[sz]e": "use",
    r"in order to": "to",
    r"leverag(e|es|ing)": "use",
    r"note that": "(leave it out)",
    r"simply|obviously|of course": "(leave it out)",
}
DETERMINERS = {"the", "a", "an", "this", "these", "that", "those", "its", "their", "each", "every", "all", "some", "no"}


class Page(NamedTuple):
    """What a page reads like."""

    path: Path
    n_sentences: int
    n_words: int
    n_noun_phrases: int  # sentences that begin with one

    @property
    def words(self) -> float:
        """Words a sentence."""
        return self.n_words / max(1, self.n_sentences)


def prose(text: str) -> str:
    """Return a page's running text: no front matter, code, formulas, tables, headings, figures or links' targets."""
    text = re.sub(r"\A---\n.*?\n---\n", "", text, flags=re.DOTALL)
    text = re.sub(r"^(`{3,}|~{3,}|:{3,}).*?^\1", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"\$\$.*?\$\$", "", text, flags=re.DOTALL)
    text = re.sub(r"\$[^$\n]*\$", "x", text)
    text = re.sub(r"!\[[^\]]*\]\([^)]*\)", "", text)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"\{[a-z]+\}`~?([^`]*)`", r"\1", text)
    text = re.sub(r"`[^`]*`", "code", text)
    return "\n".join(line for line in text.splitlines() if not re.match(r"\s*(\||#|:)", line))


def sentences(text: str) -> Iterator[list[str]]:
    """Yield the words of each sentence."""
    for paragraph in re.split(r"\n\s*\n|^\s*[-*] |^\s*\d+\. ", prose(text), flags=re.MULTILINE):
        for sentence in re.split(r"(?<=[.!?:])\s+(?=[A-Z*\"'(])", paragraph.replace("\n", " ")):
            words = re.findall(r"[A-Za-z][\w'-]*", sentence)
            if len(words) > 2:
                yield words


def read(path: Path) -> Page:
    """Count one page."""
    found = list(sentences(path.read_text(encoding="utf-8")))
    begun = sum(words[0].lower() in DETERMINERS for words in found)
    return Page(path, len(found), sum(map(len, found)), begun)


def wrong_terms(path: Path) -> list[str]:
    """List what a page calls otherwise than all the others."""
    found = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        found += [
            f"{path.relative_to(ROOT)}:{number}: {match[0]!r}: here it is {ours!r}"
            for theirs, ours in TERMS.items()
            for match in re.finditer(rf"\b(?:{theirs})\b", line, flags=re.IGNORECASE)
        ]
    return found


def pages() -> list[Path]:
    """List what users read."""
    built = ROOT / "docs" / "_build"
    docs = [page for page in sorted(ROOT.glob("docs/**/*.md")) if built not in page.parents]
    return [ROOT / "README.md", *(page for page in docs if "jupyter_execute" not in page.parts)]


def main() -> int:
    """Print the counts; the exit status is that of the check."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pages", action="store_true", help="page by page")
    parser.add_argument("--limit", type=float, default=None, help="the most words a sentence, over all pages")
    asked = parser.parse_args()
    counted = [read(path) for path in pages()]
    if asked.pages:
        for page in sorted(counted, key=lambda page: -page.words):
            print(f"{page.words:5.1f} {page.n_words:6d}  {page.path.relative_to(ROOT)}")
    n_sentences = sum(page.n_sentences for page in counted)
    words = sum(page.n_words for page in counted) / n_sentences
    begun = sum(page.n_noun_phrases for page in counted) / n_sentences
    print(f"{len(counted)} pages: {words:.1f} words a sentence; {begun:.0%} begin with the, a, this or the like")
    wrong = [line for path in pages() for line in wrong_terms(path)]
    print("\n".join(wrong) if wrong else "No term is used that has another name here.")
    is_long = asked.limit is not None and words > asked.limit
    if is_long:
        print(f"Sentences are longer than {asked.limit} words. Split the longest: --pages tells where.")
    return int(bool(wrong) or is_long)


if __name__ == "__main__":
    sys.exit(main())
