"""Reports and logs are read for what they print, and for nothing else."""

from __future__ import annotations

import pytest

from leverplus.errors import DataError
from leverplus_doctor.check import examine
from leverplus_doctor.checks.results import identity, printed_differences, short_name
from leverplus_doctor.command import overview
from leverplus_doctor.read import read_target
from leverplus_lab.legacy.document import read_blocks
from leverplus_lab.legacy.published import parse_report
from leverplus_lab.legacy.words import cell_number, items_in, metric, printed_setting


def codes(text: str) -> list[str]:
    return [finding.code for finding in examine(parse_report(text))]


@pytest.mark.parametrize(
    ("cell", "value"),
    [
        ("**50.15%**", 0.5015),
        ("-0.00007", -7e-5),
        ("5e-6", 5e-6),
        ("1,234", 1234.0),
        ("+1.60%", 0.016),
        ("⚠️ 3", 3.0),
    ],
)
def test_a_cell_that_is_a_number_is_read_without_its_marks(cell, value):
    assert cell_number(cell) == pytest.approx(value)


@pytest.mark.parametrize(
    "cell", ["0.5-1.0", "Epoch 2", "< 10", "", "1 of 4", "仍然很小"]
)
def test_a_cell_that_is_more_than_a_number_is_not_read_as_one(cell):
    assert cell_number(cell) is None


def test_metrics_and_settings_are_known_by_their_english_and_chinese_names():
    assert {
        metric(name) for name in ("Val Loss", "val_loss", "验证损失", "Validation loss")
    } == {"val/loss"}
    assert metric("KL散度") == metric("KL") == "kl"
    assert printed_setting("GRPO_LR") == printed_setting("grpo lr") == "lr"
    assert metric("状态") is None


def test_the_number_of_items_is_told_from_other_numbers():
    assert items_in("results (800 samples)") == 800
    assert items_in("在200样本测试中") == 200
    assert items_in("n = 1,200") == 1200
    assert items_in("正样本 [2, 3] 和 5 samples") is None
    assert items_in("620 queries of training data") is None


def test_names_are_reduced_to_the_plan_they_name():
    assert identity("方案五 (Epoch 2)") == identity("Plan 5") == "plan 5"
    assert identity("Plan 5+8 Epoch 50") == "plan 5+8"
    assert identity("方案九 Phase1") == "plan 9 phase 1"
    assert identity("GRPO") == ""
    assert short_name("方案 7.1 Epoch 5") == "plan 7.1 epoch 5"


def test_blocks_know_the_headings_they_stand_under():
    blocks = read_blocks(
        "# A\ntext\n## B\n- item\n```bash\nexport X=1\n```\n# C\n| a | b |\n|---|---|\n| 1 | 2 |\n"
    )
    assert [(b.kind, b.headings) for b in blocks if b.kind != "heading"] == [
        ("text", ("A",)),
        ("item", ("A", "B")),
        ("code", ("A", "B")),
        ("table", ("C",)),
    ]
    assert blocks[-1].rows == (("a", "b"), ("1", "2"))


KL_TABLE = """
## RCE stage
| Epoch | Train Loss | Val Loss |
|---|---|---|
| 1 | 9.5 | 9.4 |
| 4 | 8.1 | 8.0 |

## GRPO stage
| Epoch | Train Loss | Val Loss | PPO Loss | KL | Beta |
|---|---|---|---|---|---|
| 1 | 118.0 | 9.1 | 0.9 | 12.0 | 9.7 |
| 8 | -0.002 | 9.3 | -0.002 | 0.04 | 0.001 |
"""


def test_a_kl_that_was_there_at_the_start_explains_the_rest_of_the_table():
    found = examine(parse_report(KL_TABLE))
    first = found[0]
    assert first.code == "kl_at_start"
    assert first.evidence["val_loss_before"] == 8.0
    assert first.evidence["val_loss_after"] == 9.1
    assert set(first.consequences) >= {
        "kl_weight_on_rails",
        "kl_collapsed",
        "loss_falls_by_kl_only",
    }
    assert "selected_by_loss" in [finding.code for finding in found]


def test_the_same_table_with_chinese_headings_gives_the_same_findings():
    chinese = (
        KL_TABLE.replace("RCE stage", "RCE阶段")
        .replace("GRPO stage", "GRPO阶段")
        .replace("Train Loss", "训练损失")
        .replace("Val Loss", "验证损失")
        .replace("| KL |", "| KL散度 |")
    )
    assert codes(chinese) == codes(KL_TABLE)


def test_a_table_that_says_epoch_in_columns_of_blanks_is_read():
    text = "GRPO\nEpoch  Train Loss  Val Loss  KL\n1      30.0        9.1       7.5\n2      0.1         9.3       0.03\n"
    (series,) = parse_report(text).series
    assert series.stage == "grpo"
    assert series.values("kl") == [(1, 7.5), (2, 0.03)]


def test_a_plain_log_is_read_line_by_line():
    log = "\n".join(
        f"[grpo] Epoch {e}/4 | train_loss={1.0 / e:.3f} kl={0.01 * e} adv_std=0.004"
        for e in range(1, 5)
    )
    record = parse_report(log)
    (series,) = record.series
    assert [epoch for epoch, _ in series.values("adv/std")] == [1, 2, 3, 4]
    assert series.last("loss/total") == 0.25
    assert "advantage_std_tiny" in [finding.code for finding in examine(record)]


@pytest.mark.parametrize("start", ["轮次 {}/3: ", "[GRPO] 第{}轮 "])
def test_a_chinese_log_is_read_line_by_line(start):
    line = "训练损失: {:.1f}, 验证损失: 9.{}, KL散度: {}, 优势标准差: 0.004, 优势最大值: 0.009"
    log = "GRPO\n" + "\n".join(
        start.format(e) + line.format(30 / e, e, 7.5 / e**4) for e in (1, 2, 3)
    )
    (series,) = parse_report(log).series
    assert series.values("val/loss") == [(1, 9.1), (2, 9.2), (3, 9.3)]
    assert series.values("adv/max") == [(1, 0.009), (2, 0.009), (3, 0.009)]
    assert {"advantage_std_tiny", "kl_at_start", "selected_by_loss"} <= set(codes(log))


def test_columns_under_a_chinese_epoch_are_a_table():
    (series,) = parse_report(
        "GRPO\n轮次  训练损失  KL\n1     30.0      7.5\n2     0.1       0.03\n"
    ).series
    assert series.values("kl") == [(1, 7.5), (2, 0.03)]


def test_a_text_in_another_encoding_is_refused_with_the_command_that_converts_it(
    tmp_path,
):
    path = tmp_path / "zh.log"
    path.write_bytes("轮次 1/3: 训练损失: 3.0, 验证损失: 9.1".encode("gb18030"))
    with pytest.raises(DataError, match="iconv -f GB18030"):
        read_target(path)


ADVANTAGES = """
| Metric | Epoch 1 | Epoch 2 | Epoch 3 | Expected |
|---|---|---|---|---|
| Adv Std | 0.0063 | 0.0062 | 0.0062 | 0.5 |
| Adv Max | {} | {} | {} | 2 |
"""


def test_a_tiny_advantage_spread_names_both_causes_and_the_measurement_that_separates_them():
    (finding,) = [
        f
        for f in examine(parse_report(ADVANTAGES.format(0.0073, 0.009, 0.009)))
        if "tiny" in f.code
    ]
    assert "under 1 % of the groups carry signal" in finding.title
    assert finding.evidence["max_over_std_first"] == pytest.approx(1.159, abs=1e-3)
    assert "flat" in finding.cause
    assert "top k" in finding.cause
    assert "which fits the print of 3 kept members" in finding.cause
    assert "before any selection" in finding.cure
    (other,) = [
        f
        for f in examine(parse_report(ADVANTAGES.format(0.0155, 0.0155, 0.0155)))
        if "tiny" in f.code
    ]
    assert "does not fit" in other.cause


def test_what_is_hoped_for_is_not_taken_for_measured():
    text = "## Plan 3\n**Expected results**:\n- Adv Std: 0.004\n- average gain +3%\n\n**Measured**:\n- Adv Std: 0.9\n"
    (series,) = parse_report(text).series
    assert series.values("adv/std") == [(None, 0.9)]
    assert parse_report(text).published.gains == ()


def test_a_larger_learning_rate_is_only_questioned_where_the_signal_is_missing():
    text = "## Plan 4\n- Adv Std: {}\n- GRPO_LR = 5e-6\n```bash\nexport GRPO_LR=5e-5\n```\n"
    assert "learning_rate_without_signal" in codes(text.format(0.006))
    assert "learning_rate_without_signal" not in codes(text.format(0.9))


RESULTS = """
### {name} results ({n} samples)
| Shot | Baseline | {name} Epoch {epoch} | vs Baseline |
|---|---|---|---|
| 1 | 48.50% | {a}% | +1.0% |
| 2 | 47.70% | {b}% | +0.5% |
| 3 | 48.10% | {c}% | -0.7% |
"""


def test_a_small_gain_on_few_items_is_noise_and_a_large_one_on_many_is_not():
    small = RESULTS.format(
        name="Plan 1", n=800, epoch=2, a="49.50", b="48.20", c="47.40"
    )
    large = RESULTS.format(
        name="Plan 1", n=20000, epoch=2, a="58.50", b="58.20", c="57.40"
    )
    assert "difference_inside_noise" in codes(small)
    assert "difference_inside_noise" not in codes(large)
    assert not any(
        row.settled for row in printed_differences(parse_report(small).published)
    )
    assert printed_differences(parse_report(large).published)[0].settled


def test_a_report_is_told_by_what_it_settles_and_what_it_leaves_open():
    small = RESULTS.format(
        name="Plan 1", n=800, epoch=2, a="49.50", b="48.20", c="47.40"
    )
    large = RESULTS.format(
        name="Plan 1", n=20000, epoch=2, a="58.50", b="58.20", c="48.00"
    )
    lines = overview(parse_report(small + "\n### Training\n- Adv Std: 0.9\n"))
    assert "can be concluded about accuracy: nothing" in lines
    assert (
        "cannot be concluded: 3 of 3 differences from a baseline, too small for their n"
        in lines
    )
    lines = overview(parse_report(large))
    assert (
        "can be concluded about accuracy: plan 1 epoch 2 +10.0 points at 1 shot (n = 20000); plan 1"
        in lines[1]
    )
    assert "cannot be concluded: 1 of 3 differences" in lines[2]
    (alone,) = [
        line
        for line in overview(parse_report("- shot_num=1: 60%\n"))
        if line.startswith("cannot")
    ]
    assert "no row stands beside a baseline" in alone


def test_a_row_under_another_name_with_the_same_digits_is_reported_once_and_the_same_plan_is_not():
    first = RESULTS.format(
        name="Plan 1", n=800, epoch=9, a="49.50", b="48.20", c="47.40"
    )
    copied = RESULTS.format(
        name="Plan 1+2", n=800, epoch=9, a="49.50", b="48.20", c="47.40"
    )
    (finding,) = [
        f for f in examine(parse_report(first + copied)) if f.code == "identical_rows"
    ]
    assert "plan 1+2 epoch 9 is digit-identical to plan 1 epoch 9" in finding.title
    assert "identical_rows" not in codes(first + first)


def test_a_table_without_n_takes_over_that_of_the_same_baseline():
    first = RESULTS.format(
        name="Plan 1", n=800, epoch=9, a="49.50", b="48.20", c="47.40"
    )
    second = RESULTS.format(
        name="Plan 2", n=800, epoch=9, a="49.60", b="48.10", c="47.30"
    ).replace(" (800 samples)", "")
    assert {arm.n for arm in parse_report(first + second).published.arms} == {800}
    assert {arm.n for arm in parse_report(second).published.arms} == {None}
    assert "comparison_without_n" in codes(second)


GAINS = "## {}\n{}\n| Shot | Baseline | Plan | vs Baseline |\n|---|---|---|---|\n| 1 | 48.0% | {} | {} |\n"


def unsized(text):
    found = [f for f in examine(parse_report(text)) if f.code == "comparison_without_n"]
    return found[0].evidence["comparisons"] if found else 0


@pytest.mark.parametrize(
    ("text", "count"),
    [
        pytest.param("## A\n- mean gain +1.5% (n = 800)\n", 0, id="its line"),
        pytest.param("## A\n- mean gain +1.5%\n", 1, id="nowhere"),
        pytest.param(
            "## A\n- mean gain +1.5%\n\nEvaluated on 800 items.\n",
            0,
            id="its section, below",
        ),
        pytest.param(
            "## A (800 samples)\n### Result\n- mean gain +1.5%\n",
            0,
            id="the section around it",
        ),
        pytest.param(
            "# Report\n800 items\n## A\n### Result\n- mean gain +1.5%\n",
            0,
            id="the whole report",
        ),
        pytest.param(
            "## A\n800 items\n## B\n- mean gain +1.5%\n", 1, id="another section"
        ),
        pytest.param(
            "## A\n### Data\n800 items\n### Result\n- mean gain +1.5%\n",
            1,
            id="a section beside it",
        ),
        pytest.param(
            "mean gain +1.5%\nn = 800\nmean gain +2.5%\n",
            1,
            id="a log says it for what follows",
        ),
        pytest.param(
            "| Shot | Plan (800 samples) |\n|---|---|\n| 1 | 50.0% |\n",
            0,
            id="its table, in a cell",
        ),
        pytest.param(
            "| Shot | Plan | n |\n|---|---|---|\n| 1 | 50.0% | 800 |\n",
            0,
            id="its table, in a column",
        ),
        pytest.param(
            "| Shot | Plan | n |\n|---|---|---|\n| 1 | 50.0% | 90 |\n",
            0,
            id="its table, a small one",
        ),
        pytest.param(
            "| Shot | Plan | n |\n|---|---|---|\n| 1 | 50.0% | 3 |\n",
            1,
            id="a column of something else",
        ),
        pytest.param(
            "## A\nn = 800\n- mean gain +1.5%\n## End\n- mean gain +1.5%\n",
            0,
            id="what it repeats",
        ),
        pytest.param(
            "## A\nn = 800\n- mean gain +1.5%\n## End\n- mean gain +1.6%\n",
            1,
            id="not what it repeats",
        ),
    ],
)
def test_a_comparison_carries_the_n_of(text, count):
    assert unsized(text) == count


def test_a_table_with_n_does_not_speak_for_a_table_without():
    first = GAINS.format("Plan 1", "On 800 items:", "50.0%", "+2.0%")
    second = GAINS.format("Plan 2", "", "51.0%", "+3.0%").replace("48.0%", "47.5%")
    assert unsized(first) == 0
    assert unsized(first + second) == 2  # an arm and its difference
    (found,) = [
        f
        for f in examine(parse_report(first + second))
        if f.code == "comparison_without_n"
    ]
    assert found.title.startswith("2 of 4 printed comparisons carry no n")
    assert (
        unsized(first + second.replace("47.5%", "48.0%")) == 0
    )  # the same baseline, so the same items


def test_plans_that_differ_in_a_dead_setting_only_are_one_experiment():
    plan = "### Plan {0}\n- use_ppo_clip_only=true\n- kl_beta={1}\n- GRPO_LR={2}\n"
    same = plan.format("3.1", 0.01, "5e-6") + plan.format("3.2", 0.05, "5e-6")
    assert {"dead_setting", "same_run_twice"} <= set(codes(same))
    other = plan.format("3.1", 0.01, "5e-6") + plan.format("3.2", 0.05, "1e-4")
    assert "same_run_twice" not in codes(other)


def test_the_best_epoch_is_checked_against_the_printed_losses():
    table = (
        "## Plan 2\n- Best checkpoint: Epoch {}\n| Metric | Epoch 1 | Epoch 2 |\n|---|---|---|\n"
        "| Val Loss | 5.1 | 5.2 |\n| KL | 0.1 | 0.1 |\n"
    )
    assert "claimed_best_is_not" in codes(table.format("2 (Val Loss: 5.2)"))
    assert "claimed_best_is_not" not in codes(table.format("1 (Val Loss: 5.1)"))


def test_accuracy_that_falls_with_the_number_of_items_is_seen_in_sentences_too():
    text = (
        "- **100 samples**: shot_num=1 {}%, shot_num≥2 (60.0%, 59.0%)\n"
        "- **400 samples**: shot_num=1 50.0%, shot_num≥2 (48.0%, 47.0%)\n"
    )
    assert "accuracy_falls_with_n" in codes(text.format("65.0"))
    assert "accuracy_falls_with_n" not in codes(text.format("45.0"))


def test_identical_picks_are_read_from_statements():
    assert "identical_picks" in codes(
        "KL beta 0.12 and 0.15: picks are 100% identical\n"
    )
    assert "identical_picks" in codes("范例索引选择 100% 相同\n")
    assert "identical_picks" not in codes("picks are 40% identical\n")


def test_a_text_without_anything_to_read_is_refused(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("Nothing of interest here.\n")
    with pytest.raises(DataError, match="no training table"):
        read_target(path)
