"""The doctor beside a training: before the first step, after every epoch, after every stage, and at the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from leverplus import rundir
from leverplus.experiment.run import Run
from leverplus.rundir import write_json

if TYPE_CHECKING:
    from leverplus.doctor.findings import Finding
    from leverplus.doctor.records import Probe
    from leverplus.policies.base import Policy
    from leverplus.policies.items import ItemTable
    from leverplus.training.data.from_search import RowMaker
    from leverplus.training.data.rows import Row
    from leverplus.training.loop import Judge
    from leverplus.types import Group

JUDGED_GROUPS, ASKED_AGAIN, HELD_OUT = 200, 32, 64
"""How much the preflight looks at: groups whose rewards are compared, scores asked again, queries of dev and test."""


class Monitor:
    """Looks at one training as it goes on, says each finding once, and stops a strict run on the first error."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.said: set[tuple[str, object]] = set()  # code and stage

    def preflight(self, policy: Policy, rows: Sequence[Row], groups: Sequence[Group], make_rows: RowMaker) -> None:
        """What the doctor says before the first step; writes probe.json."""
        from leverplus.doctor.live import preflight
        from leverplus.doctor.probes import merged
        from leverplus.doctor.quality import stats_of
        from leverplus.doctor.runfolder import probe_json, read_probe

        probe, stats = measure(self.run, policy, rows, groups, make_rows), stats_of(groups)
        known, _ = read_probe(self.run.folder)
        if known is not None:  # a run that goes on: what is asked only where the model was, was measured before
            probe = merged(probe, known)
        write_json(self.run.folder / rundir.PROBE, probe_json(probe, stats))
        note_findings(self.run)
        self.report(preflight(self.run.recipe.values(), probe, stats), "before training")

    def check_handover(self, policy: Policy, folder: Path, rows: Sequence[Row], table: ItemTable) -> None:
        """Check that the checkpoint a stage wrote answers as the policy that it trained."""
        from leverplus.doctor.live import preflight
        from leverplus.doctor.probes import merged, probe_checkpoint
        from leverplus.doctor.runfolder import probe_json, read_probe

        known, stats = read_probe(self.run.folder)
        probe = probe_checkpoint(policy, folder, rows, table)
        if known is not None:
            worse = (known.logit_gap or 0.0) > (probe.logit_gap or 0.0)  # the worst of all stages is kept
            probe = merged(known, probe) if worse else merged(probe, known)
        write_json(self.run.folder / rundir.PROBE, probe_json(probe, stats))
        note_findings(self.run)
        found = [finding for finding in preflight({}, probe) if finding.code == "checkpoint_not_whole"]
        self.report(found, f"after {folder.name}")

    def watched(self, judge: Judge, stage: str, epochs: int) -> Judge:
        """A judge that also shows how far the stage is, says what the doctor finds in the log so far, and keeps
        findings.json up to date.
        """
        from leverplus.doctor.live import epoch_findings
        from leverplus.training.runlog import RunLog

        run = self.run

        def watch(policy: Policy) -> Mapping[str, float]:
            lines = RunLog(run.folder / rundir.LOG).lines()
            for finding in epoch_findings(lines, run.recipe.values()) if lines else ():
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
        from leverplus.doctor.findings import ERROR
        from leverplus.doctor.live import refuse

        untrained = self.run.recipe.model.untrained
        errors = [finding for finding in findings if finding.severity == ERROR]
        stops = self.run.strict and not untrained
        for finding in findings:
            if not (stops and errors and finding is errors[0]):  # that one is the sentence the run ends with
                self._say_once(finding, when)
        if stops:
            refuse(findings)
        if not findings:
            return
        if not errors:
            why = "none of these findings is an error"
        elif untrained:
            why = "model.untrained = true: of random weights nothing is expected"
        else:
            why = "errors stop only `lever run` and `lever train` without --ignore-findings"
        self.run.say(f"training goes on ({why})")

    def _say_once(self, finding: Finding, when: str) -> None:
        """Say a finding unless it was said before; the log of one stage is looked at again in the next."""
        key = (finding.code, finding.evidence.get("stage"))
        if key not in self.said:
            self.said.add(key)
            self.run.say(f"{finding.severity} {when}: {finding.title} [{finding.code}]")


def measure(run: Run, policy: Policy, rows: Sequence[Row], groups: Sequence[Group], make_rows: RowMaker) -> Probe:
    """Everything that can be measured before the first step."""
    from leverplus.doctor import probes

    dev, test = (run.chosen_items(split, HELD_OUT) for split in ("dev", "test"))
    dev_pools, dev_table = run.pools(dev)
    pools = {"train": [group.pool for group in groups], "dev": dev_pools, "test": run.pools(test)[0]}
    items = {str(item.id): item for item in (*run.demonstrations, *dev, *test, *run.training_queries())}
    held_out = (item for split in ("dev", "test") for item in run.task.items(split))
    measured = [
        probes.probe_splits(run.training_queries(), held_out),
        probes.probe_pools(pools, items),
        probes.probe_policy(policy, rows, make_rows.table),
        probes.probe_labels(rows, groups),
        probes.probe_rewards(make_rows(groups[:JUDGED_GROUPS])),
        probes.probe_order(policy, dev_pools, dev_table),
    ]
    # the model is in this process, was asked for something, and the groups are its answers
    score = run.recipe.score
    if score.engine == "local" and run.scorer.meter.fresh and not score.groups:
        asked = [(group.query, member.demos) for group in groups for member in group.members[-1:]][:ASKED_AGAIN]
        measured.append(probes.probe_scorer(run.scorer, asked))
    return probes.merged(*measured)


def note_findings(run: Run) -> None:
    """What the doctor finds in a training under way, in findings.json: whoever follows the run sees it."""
    from leverplus.doctor.examine import examine
    from leverplus.doctor.live import LATE
    from leverplus.doctor.runfolder import read_run

    _write_findings(run, [finding for finding in examine(read_run(run.folder)) if finding.code not in LATE])


def examine_run(run: Run) -> list[Finding]:
    """What the doctor finds in the run folder; writes findings.json."""
    from leverplus.doctor.examine import examine
    from leverplus.doctor.runfolder import read_run

    findings = examine(read_run(run.folder))
    _write_findings(run, findings)
    return findings


def _write_findings(run: Run, findings: Sequence[Finding]) -> None:
    write_json(run.folder / rundir.FINDINGS, {"findings": [finding.as_json() for finding in findings]})
