"""How many words the documentation has, by kind of page.

    python -m benchmarks.words

*all* counts everything between blanks, as ``wc -w`` does, including numbers and table bars; *words* counts
only what contains a letter.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

_DOCS = Path(__file__).resolve().parents[1] / "docs"
_KINDS = {"tutorials": "tutorials", "reference": "reference", "studies": "studies"}


def counts(docs: Path = _DOCS) -> dict[str, tuple[int, int]]:
    """(all, words) by kind; pages at the top of ``docs`` are guides."""
    everything: Counter[str] = Counter()
    words: Counter[str] = Counter()
    for page in sorted(docs.rglob("*.md")):
        kind = _KINDS.get(page.relative_to(docs).parts[0], "guides")
        tokens = page.read_text(encoding="utf-8").split()
        everything[kind] += len(tokens)
        words[kind] += sum(re.search(r"[^\W\d_]", token) is not None for token in tokens)
    return {kind: (everything[kind], words[kind]) for kind in everything}


def main() -> None:
    found = counts()
    totals = [sum(pair[i] for pair in found.values()) for i in (0, 1)]
    print(f"{'':<10} {'all':>7} {'words':>7}")
    for kind, pair in found.items():
        print(f"{kind:<10} {pair[0]:>7,} {pair[1]:>7,}")
    shares = [1 - found["studies"][i] / totals[i] for i in (0, 1)]
    print(f"{'outside studies':<10} {shares[0]:.0%} {shares[1]:>7.0%}")


if __name__ == "__main__":
    main()
