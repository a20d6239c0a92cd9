"""The doctor beside a training: before the first step, after every epoch, after every stage, and at the end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leverplus.data import rundir
from leverplus.data.rundir import write_json
from leverplus.errors import TrainingError
from leverplus.learn.runlog import RunLog
from leverplus.run.run import Run
from leverplus_doctor.check import ERROR, Finding, examine
from leverplus_doctor.quality import stats_of
from leverplus_doctor.read import (
    Measured,
    flat_settings,
    read_probe,
    read_run,
    series_of,
)
from leverplus_doctor.records import GroupStats, Probe, Record

if TYPE_CHECKING:
    from leverplus.data.types import Group
    from leverplus.learn.data.from_search import RowMaker
    from leverplus.learn.data.rows import Row
    from leverplus.learn.loop import Judge
    from leverplus.learn.policies.base import Policy
    from leverplus.learn.policies.table import ItemTable

LATE = {
    "difference_inside_noise",
    "worse_than_random",
    "below_training_free",
    "missing_anchors",
    "seed_missing",
}
"""Codes that speak about an evaluation, not about a training under way."""


class Monitor:
    """Looks at one training as it goes on, says each finding once, and stops a strict run on the first error."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.said: set[tuple[str, object]] = set()  # code and stage

    def preflight(
        self,
        policy: Policy,
        rows: Sequence[Row],
        groups: Sequence[Group],
        make_rows: RowMaker,
    ) -> None:
        """What the doctor says before the first step; writes probe.json."""
        from leverplus_doctor import probes  # torch comes in with them

        stats = stats_of(groups)
        probe = probes.measure(self.run, policy, rows, groups, make_rows)
        # of a run that goes on, what is asked only where the model was, was measured before
        probe = probes.merged(probe, read_probe(self.run.folder).probe)
        self._keep(Measured(probe, stats))
        found = preflight(self.run.recipe.values(), probe, stats)
        self.report(found, "before training")

    def check_handover(
        self, policy: Policy, folder: Path, rows: Sequence[Row], table: ItemTable
    ) -> None:
        """Check that the checkpoint a stage wrote answers as the policy that it trained."""
        from leverplus_doctor import probes  # torch comes in with them

        before = read_probe(self.run.folder)
        known = before.probe
        probe = probes.probe_checkpoint(policy, folder, rows, table)
        # the worst of all stages is kept
        if (known.logit_gap or 0.0) > (probe.logit_gap or 0.0):
            probe = known
        probe = probes.merged(probe, known)
        self._keep(Measured(probe, before.groups))
        found = preflight({}, probe)
        broken = [own for own in found if own.code == "checkpoint_not_whole"]
        self.report(broken, f"after {folder.name}")

    def _keep(self, measured: Measured) -> None:
        write_json(self.run.folder / rundir.PROBE, asdict(measured))
        note_findings(self.run)

    def watched(self, judge: Judge, stage: str, epochs: int) -> Judge:
        """A judge that also shows how far the stage is, says what the doctor finds in the log so far, and keeps
        findings.json up to date.
        """
        run = self.run

        def watch(policy: Policy) -> Mapping[str, float]:
            lines = RunLog(run.folder / rundir.LOG).lines()
            found = epoch_findings(lines, run.recipe.values()) if lines else ()
            for finding in found:
                self._say_once(finding, f"after epoch {lines[-1]['epoch']}")
            note_findings(run)
            own = sum(line["stage"] == stage for line in lines)
            run.show_progress(f"training, {stage}", min(own + 1, epochs), epochs)
            return judge(policy)

        return watch

    def report(self, findings: Sequence[Finding], when: str) -> None:
        """Say every finding once, and whether training goes on; a strict run stops on the first error, unless its
        model knows nothing by intention.
        """
        untrained = self.run.recipe.model.untrained
        errors = _errors(findings)
        stops = self.run.strict and not untrained
        for finding in findings:
            # the first error is the sentence that a run which stops ends with
            if not stops or finding not in errors[:1]:
                self._say_once(finding, when)
        if stops:
            refuse(findings)
        why = "errors stop only `lever run` and `lever train` without --ignore-findings"
        if not errors:
            why = "none of these findings is an error"
        elif untrained:
            why = "model.untrained = true: of random weights nothing is expected"
        if findings:
            self.run.say(f"training goes on ({why})")

    def _say_once(self, finding: Finding, when: str) -> None:
        """Say a finding unless it was said before; the log of one stage is looked at again in the next."""
        key = (finding.code, finding.evidence.get("stage"))
        if key not in self.said:
            self.said.add(key)
            self.run.say(f"{finding.severity} {when}: {finding.title} [{finding.code}]")


def preflight(
    values: Mapping[str, Any],
    probe: Probe = Probe(),  # noqa: B008
    groups: GroupStats | None = None,
) -> list[Finding]:
    """Findings before the first step, from a recipe's values (`Recipe.values()`), a probe and the groups."""
    record = Record(settings=flat_settings(values), probe=probe, groups=groups)
    return examine(record)


def epoch_findings(
    lines: Iterable[Mapping[str, Any]], values: Mapping[str, Any]
) -> list[Finding]:
    """Findings on the log lines so far, with the recipe's values."""
    settings = flat_settings(values)
    return _early(Record(settings=settings, series=series_of(lines, settings)))


def _early(record: Record) -> list[Finding]:
    """The findings that a training under way can mend."""
    return [finding for finding in examine(record) if finding.code not in LATE]


def _errors(findings: Sequence[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.severity == ERROR]


def refuse(findings: Sequence[Finding]) -> None:
    """Raise on the first error, with what to try; silent when there is none."""
    errors = _errors(findings)
    if not errors:
        return
    first = errors[0]
    more = f" ({len(errors) - 1} more errors stand above)" if len(errors) > 1 else ""
    raise TrainingError(
        f"preflight {first.code}: {first.title}. {first.cure}{more} Type the command again with --ignore-findings to "
        "train all the same."
    )


def note_findings(run: Run) -> None:
    """What the doctor finds in a training under way, in findings.json: whoever follows the run sees it."""
    write_findings(run.folder, _early(read_run(run.folder)))


def examine_run(run: Run) -> list[Finding]:
    """What the doctor finds in the run folder; writes findings.json."""
    findings = examine(read_run(run.folder))
    write_findings(run.folder, findings)
    return findings


def write_findings(folder: Path, findings: Sequence[Finding]) -> None:
    """Write findings.json."""
    values = {"findings": [finding.as_json() for finding in findings]}
    write_json(folder / rundir.FINDINGS, values)
