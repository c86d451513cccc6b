"""Makes ../main_job/heatmap.png, the credit of one group after the default run.

python reports/screenshots/heatmap.py RUN_FOLDER/artifacts/heatmaps/chain_step_000160.html     # seconds; needs Chromium
"""

from __future__ import annotations

import sys
from pathlib import Path

from browser import find_chromium, open_page, save_picture, value_of, wait_still

PICTURE = Path(__file__).parents[1] / "main_job" / "heatmap.png"
SHOWN = 3
"""Completions, at most, of a group's eight."""


def main() -> None:
    executable = find_chromium()
    if executable is None:
        sys.exit("no Chromium on PATH; install one, e.g. apt-get install chromium")
    with open_page(executable, 1000, 4000) as page:
        page.goto(Path(sys.argv[1]).resolve().as_uri())
        value_of(page, "document.querySelectorAll('.t').length")
        wait_still(page)
        end = value_of(
            page, f"[...document.querySelectorAll('section')].slice(0, {SHOWN}).at(-1).getBoundingClientRect().bottom"
        )
        save_picture(page, PICTURE, height=round(end) + 12)


if __name__ == "__main__":
    main()
