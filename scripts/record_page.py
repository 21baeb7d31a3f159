"""Record docs/images/page.png: the page of a real server in a real browser, with a scripted model.

Run it with `make recording` after a change to what the page shows.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from tests.serve.page_browser import ask, page_server  # noqa: E402
from toolcrib.providers.scripted import call, says  # noqa: E402

IMAGE = ROOT / "docs" / "images" / "page.png"
FILES = {
    "prices.py": "def gross(net, rate):\n    return net * rate\n",
    "test_prices.py": 'from prices import gross\n\nassert gross(10, 0.2) == 12.0, "gross is wrong"\nprint("ok")\n',
    "build/old.txt": "old\n",
}
PATCH = {
    "mode": "replace",
    "path": "prices.py",
    "old_string": "return net * rate",
    "new_string": "return round(net * (1 + rate), 2)",
}
STEPS = [
    says("", call("terminal", {"command": "python3 test_prices.py"})),
    says("`gross` leaves the net price out. I correct it and test again.", call("patch", PATCH)),
    says("", call("terminal", {"command": "python3 test_prices.py"})),
    says("The test passes. Now the old build goes.", call("terminal", {"command": "rm -rf build"})),
    "Done.",
]


async def record() -> None:
    with tempfile.TemporaryDirectory(prefix="toolcrib-page-") as temporary:
        folder = Path(temporary) / "shop"
        for name, content in FILES.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(content)
        async with page_server(Path(temporary) / "home", folder, STEPS) as server:
            page = await server.open()
            await ask(page, "Fix the failing price test, then remove the old build.")
            await page.get_by_role("button", name="Allow once").wait_for()
            await page.locator("details.call > summary", has_text="patch").click()
            await page.locator(".diff").wait_for()
            await page.locator(".scroller").evaluate("node => { node.scrollTop = node.scrollHeight }")
            await page.wait_for_timeout(500)
            await page.screenshot(path=IMAGE)
    print(f"wrote {IMAGE.relative_to(ROOT)}")


if __name__ == "__main__":
    asyncio.run(record())
