"""Writes docs/reference/ and the man page: commands, Python API and HTTP API, as the program has them.

    python tools/reference.py            writes the pages
    python tools/reference.py --check    says which are not as they should be, and exits with 1

A test compares them, so that they cannot fall behind.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from reference_pages import commands, http, man, models, python, settings

ROOT = Path(__file__).resolve().parents[1]
PAGES = {
    "docs/reference/commands.md": commands.page,
    "docs/reference/python.md": python.page,
    "docs/reference/http.md": http.page,
    "docs/reference/models.md": models.page,
    "docs/reference/settings.md": settings.page,
    "src/olivine/cli/olivine.1": man.page,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    stale = []
    for name, page in PAGES.items():
        path, text = ROOT / name, page()
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(name)
        if not check:
            path.write_text(text, encoding="utf-8")
    print(f"{'stale' if check else 'written'}: {', '.join(stale) or 'none'}")
    sys.exit(1 if check and stale else 0)


if __name__ == "__main__":
    main()
