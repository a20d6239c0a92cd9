"""`lever report`: one self-contained HTML file that shows a run."""

from __future__ import annotations

import argparse
import json
import webbrowser
from pathlib import Path

from leverplus import rundir


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, metavar="RUN", help="a run folder")
    parser.add_argument("--open", action="store_true", help="open it in the browser")
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout")


def run(args: argparse.Namespace) -> int:
    from leverplus.experiment.opening import load_run
    from leverplus.report.build import build_report
    from leverplus.report.data import require_manifest

    if (args.run / rundir.MANIFEST).is_file():
        require_manifest(args.run)
    path = build_report(load_run(args.run))
    size = path.stat().st_size
    print(json.dumps({"report": str(path), "bytes": size}) if args.json else f"{path} ({size / 1e6:.1f} MB)")
    if args.open:
        webbrowser.open(path.resolve().as_uri())
    return 0
