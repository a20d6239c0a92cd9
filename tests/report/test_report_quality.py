"""The page of data quality shows what was measured, chart by chart, and carries everything it needs."""

from __future__ import annotations

import json
import re

from leverplus.doctor.examine import examine
from leverplus.doctor.quality import Sample, group_stats
from leverplus.doctor.records import Record
from leverplus.report.quality import quality_figures, quality_page


def stats(origins=("beam", "random"), gt_prob=True):
    groups = []
    for query in range(12):
        samples = []
        for place in range(6):
            accuracy = float(place < query % 4)
            p = 0.1 + 0.7 * accuracy + 0.02 * place if gt_prob else None
            samples.append(Sample((f"d{place}",), accuracy, p, origins[place % len(origins)]))
        groups.append(samples)
    return group_stats(groups)


def test_every_chart_draws_the_counts_of_its_table():
    figures = {figure.id: figure for figure in quality_figures(stats())}
    assert set(figures) == {
        f"quality-{name}" for name in ("accuracies", "tiers", "positives", "sizes", "lengths", "origins", "calibration")
    }
    positives = figures["quality-positives"]
    assert dict(zip(positives.data[0]["x"], positives.data[0]["y"], strict=True)) == {"0": 3, "1": 3, "2": 3, "3": 3}
    assert [row[:2] for row in positives.table.rows] == [("0", "3"), ("1", "3"), ("2", "3"), ("3", "3")]
    wrong, right = figures["quality-calibration"].data[0]["y"][0], figures["quality-calibration"].data[0]["y"][-1]
    assert (wrong, right) == (0.0, 100.0)
    members = sum(int(row[1].replace(",", "")) for row in figures["quality-calibration"].table.rows)
    assert members == 72


def test_what_was_not_measured_has_no_chart():
    names = {figure.id for figure in quality_figures(stats(origins=("beam",), gt_prob=False))}
    assert not names & {"quality-origins", "quality-calibration"}


def test_the_page_is_whole_and_escapes_what_it_shows():
    groups = stats()
    record = Record(source="<b>store</b>.db", groups=groups)
    page = quality_page(record, groups, examine(record))
    assert "&lt;b&gt;store&lt;/b&gt;.db" in page
    assert "<b>store</b>" not in page
    drawn = json.loads(re.search(r'id="figures">(.*?)</script>', page, re.DOTALL).group(1))
    assert set(drawn) == set(re.findall(r'data-figure="([^"]+)"', page))
    outside_scripts = re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)
    assert not re.search(r'(?:src|href)="https?:', outside_scripts)
    assert "queries without a right member" in page
