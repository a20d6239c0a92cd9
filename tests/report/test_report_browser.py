"""The page in a real Chromium. Screenshots are left in build/screenshots for people to look at."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from leverplus.report.build import build_report

CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)
SCREENSHOTS = Path(__file__).parents[2] / "build" / "screenshots"
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--no-first-run", "--hide-scrollbars", "--enable-logging=stderr", "--virtual-time-budget=5000",
)  # fmt: skip

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine (apt-get install chromium)"),
]


def chromium(profile: Path, page: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Open a page from disk; returns what it printed and logged."""
    command = [str(CHROMIUM), *FLAGS, f"--user-data-dir={profile}", *options, page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert "CONSOLE" not in done.stderr, done.stderr
    return done


def test_the_report_draws_every_chart_without_a_console_error_and_runs_nothing_hostile(made, tmp_path) -> None:
    page = build_report(made)
    dom = chromium(tmp_path / "profile", page, "--dump-dom").stdout
    root = re.search(r"<html[^>]*>", dom)[0]
    assert 'data-ready="yes"' in root
    assert "pwned" not in root
    charts = dom.count("data-figure=")
    assert charts >= 8
    assert len(re.findall(r'class="[^"]*svg-container[^"]*"', dom)) == charts
    assert dom.count('class="legend"') >= 4


def test_the_console_of_the_browser_is_heard(tmp_path) -> None:
    page = tmp_path / "bad.html"
    page.write_text("<script>undefinedFunction()</script>")
    with pytest.raises(AssertionError, match="undefinedFunction"):
        chromium(tmp_path / "profile", page, "--dump-dom")


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("report", ("--window-size=1200,4200",)),
        ("report-narrow-dark", ("--window-size=500,5200", "--blink-settings=preferredColorScheme=0")),
    ],
)
def test_it_can_be_looked_at_wide_and_narrow_light_and_dark(made, tmp_path, name, options) -> None:
    from PIL import Image

    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    target = SCREENSHOTS / f"{name}.png"
    chromium(tmp_path / "profile", build_report(made), f"--screenshot={target}", *options)
    with Image.open(target) as image:
        corner = image.convert("L").getpixel((2, 2))
    assert (corner < 60) is ("dark" in name)
