"""The look of the page: colours that can be read, assets that are all there."""

from __future__ import annotations

import re

import pytest

from leverplus.view.pages import ASSETS, asset, environment, mark, percent_or_dash


def luminance(colour: str) -> float:
    """Relative luminance of #rrggbb (WCAG 2.2)."""
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(first: str, second: str) -> float:
    high, low = sorted((luminance(first), luminance(second)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_contrast_is_counted_as_the_standard_does() -> None:
    assert contrast("#ffffff", "#000000") == pytest.approx(21.0)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


def test_every_text_colour_is_readable_on_paper_and_panel_in_light_and_dark() -> None:
    style = asset("report.css")[0].decode()
    schemes = [
        dict(re.findall(r"--(\w+): (#\w{6});", block)) for block in re.findall(r":root \{(.*?)\}", style, re.DOTALL)[:2]
    ]
    for scheme in schemes:
        for name in ("ink", "soft", "accent", "right", "wrong", "partly"):
            for ground in ("paper", "panel"):
                assert contrast(scheme[name], scheme[ground]) >= 4.5, (name, ground, scheme)


def test_what_the_templates_ask_for_is_shipped() -> None:
    base = environment().loader.get_source(environment(), "base.html.j2")[0]
    asked = set(re.findall(r"/assets/([\w.-]+)", base))
    assert asked
    assert asked <= set(ASSETS)
    assert all(asset(name)[0] for name in ASSETS)
    assert asset("app.py") is None


def test_numbers_are_said_as_they_are() -> None:
    assert (percent_or_dash(0.1234), percent_or_dash(None), percent_or_dash(0.0)) == ("12.3", "–", "0.0")
    assert [mark(score) for score in (1.0, 0.3, 0.0)] == ["right", "partly", "wrong"]
