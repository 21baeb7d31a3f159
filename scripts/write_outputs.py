"""Runs the README and the guides and writes today's outputs into them, for a person to read over before committing."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY))

from tests.docs.docs_blocks import rewritten  # noqa: E402


def main(names: Sequence[str]) -> int:
    pages = [Path(name) for name in names] or [REPOSITORY / "README.md", *(REPOSITORY / "docs" / "guides").glob("*.md")]
    for page in pages:
        text = page.read_text(encoding="utf-8")
        with tempfile.TemporaryDirectory() as folder:
            changed = rewritten(text, Path(folder))
        if changed != text:
            page.write_text(changed, encoding="utf-8")
            print(f"{page.name}: outputs changed; read them over with `git diff`")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
