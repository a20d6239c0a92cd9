from __future__ import annotations

import subprocess
import sys

from leverplus import catalog
from leverplus.arms.settings import PoolSection
from leverplus.data.settings import read_section


def test_every_sampler_of_the_catalog_is_an_allowed_kind_and_can_be_loaded():
    for kind in catalog.SAMPLERS:
        problems: list[str] = []
        section = read_section(PoolSection, {"kind": kind}, "pool.", problems)
        assert section is not None
        assert (problems, section.problems()) == ([], [])
        assert callable(catalog.load(catalog.SAMPLERS, kind, "pool"))


def test_all_wrong_values_are_reported_at_once():
    problems: list[str] = []
    values = {
        "kind": "nearest_txt",
        "size": 0,
        "text_weight": 1.5,
        "first_stage": 0,
        "siez": 3,
    }
    assert read_section(PoolSection, values, "pool.", problems) is None
    assert len(problems) == 5
    assert "did you mean 'nearest_text'" in problems[0]


def test_values_that_do_not_fit_together_are_named():
    assert (
        "pool.first_stage = 50" in PoolSection(kind="mmr", first_stage=50).problems()[0]
    )
    assert PoolSection(kind="random", first_stage=50).problems() == []


def test_reading_the_section_does_not_import_torch():
    code = "import sys, leverplus.arms.settings; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
