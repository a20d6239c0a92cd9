"""A selector in use: demonstrations chosen, added, deleted, listed and audited; bundles packed and served."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from textwrap import indent, shorten
from typing import TYPE_CHECKING, Any

from leverplus.cli.command import Outcome, show
from leverplus.cli.console import opened
from leverplus.cli.results import address, run_of_bundle
from leverplus.data.formats import Problems, open_source, read_text
from leverplus.data.parsing import parse_json
from leverplus.data.reader import ReadOptions, read_examples
from leverplus.data.rundir import SHIPPED, read_json, shipped
from leverplus.errors import DataError, LeverError, MissingFile, WrongUsage
from leverplus.evaluate.names import arm_name, shots_name
from leverplus.run.run import load_run

if TYPE_CHECKING:
    from leverplus.bundle.demo import Demo, Picks
    from leverplus.bundle.selector import Selector
    from leverplus.data.types import Item

LEGEND = {
    "label": "what labels add to the score",
    "effect": "what it adds to any question, as measured",
    "interaction": "what the trained selector sees in it beyond the average",
}
TERMS = ("score", "label", "effect", "similarity", "interaction")
LONGEST = 48
"""Characters shown of a candidate's question."""

EXPLAINED = 12
"""Candidates that are printed; --json holds all."""

SHIPPED_ITEMS = "tables:okvqa-items.jsonl.gz"
LONGEST_TEXT = 100
"""Characters shown of a demonstration that is audited."""

OTHER_NAMES = {"text": "question", "label": "answer"}
"""What the keys of texts with labels are here."""


def select(
    folder: str,
    *,
    image: str | None = None,
    question: str | None = None,
    jsonl: Path | None = None,
    shots: int | None = None,
    allow: Path | None = None,
    explain: bool = False,
    checkpoint: str | None = None,
    trust: Sequence[str] = (),
) -> Outcome:
    """Chooses demonstrations for one query, or for many.

    BUNDLE_or_RUN: a bundle, a run folder, or hf://ORG/NAME
    --image FILE: the query's picture
    --question Q: the query's question
    --jsonl FILE: many queries: one {question, image} record per line
    -k --shots N: how many demonstrations (default: as recommended)
    --allow FILE: choose only among these ids: one per line, or a JSON list
    --explain: also say why: the score of every candidate, and what it is made of
    --checkpoint PATH: use this selector instead: a folder, RUN, RUN:NAME, or a .pt or .ckpt file
    --trust MODULE: a module of your own from which a bundle's way of choosing may be imported
    """
    from leverplus.bundle.selector import Selector

    if (jsonl is None) == (question is None):
        raise WrongUsage("give one query with --question, or many with --jsonl FILE")
    if jsonl is not None and image is not None:
        raise WrongUsage(
            "--image belongs to --question; the lines of --jsonl name their own pictures"
        )
    queries: list[dict[str, Any]] = [{"question": question, "image": image}]
    if jsonl is not None:
        queries = []
        for row in read_records(jsonl):
            asked = {"question": str(row["question"]), "image": row.get("image")}
            queries.append(asked)
    selector = Selector.load(folder, checkpoint, trust=trust)
    allowed = None if allow is None else read_ids(allow)
    many = selector.select_many(queries, shots=shots, allowed=allowed, explain=explain)
    rows = []
    lines = []
    for query, picks in zip(queries, many, strict=True):
        row = {
            "question": query["question"],
            "demos": [demo.as_json() for demo in picks],
        }
        if picks.lists:
            row["lists"] = [[demo.id for demo in own] for own in picks.lists]
        if picks.answer is not None:
            row["answer"] = picks.answer
        if picks.explanation is not None:
            row["explanation"] = picks.explanation
        rows.append(row)
        if jsonl is None:
            return Outcome(row, picks_lines(picks))
        lines.append(query["question"])
        lines.append(indent("\n".join(picks_lines(picks)), "  "))
    return Outcome({"fingerprint": selector.fingerprint, "queries": rows}, lines)


def picks_lines(picks: Picks) -> list[str]:
    """Chosen demonstrations, and where it was asked for, why they were."""
    lines = [f"{demo.id}  {demo.question}  ->  {demo.answer}" for demo in picks]
    if picks.answer is not None:
        lines.append(f"the answer, without a model: {picks.answer}")
    if len(picks.lists) > 1:
        lines.append(
            f"the last of {len(picks.lists)} lists, each a call of the model; --json holds all, and in Python "
            "`selector.answer(ask, question=...)` asks with each and makes one answer of them"
        )
    if picks.explanation is not None:
        lines += explanation_lines(picks.explanation)
    return lines or ["(no demonstration is shown)"]


def explanation_lines(found: Mapping[str, Any]) -> list[str]:
    """Who chose, the best candidates with their terms, and what nearest neighbours would have shown."""
    listed = found["candidates"][:EXPLAINED]
    terms = []
    for term in TERMS:
        if any(own[term] is not None for own in listed):
            terms.append(term)
    rows = [["place", "id", *terms, "answer", "question"]]
    for own in listed:
        row = [str(own["place"] or ""), own["id"]]
        for term in terms:
            row.append("-" if own[term] is None else f"{own[term]:.3f}")
        for text in (own["answer"], own["question"]):
            row.append(shorten(text, LONGEST, placeholder="..."))
        rows.append(row)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    goes_by = found["goes_by"] or "a way of choosing of your own"
    lines = [f"chosen: {arm_name(found['arm'])} ({goes_by})"]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        lines.append("  ".join(cells).rstrip())
    more = len(found["candidates"]) - EXPLAINED
    if more > 0:
        lines.append(f"... and {more} more candidates; --json lists all")
    similar = ", ".join(found["nearest_would_show"]) or "none"
    legend = [f"{term}: {LEGEND[term]}" for term in terms if term in LEGEND]
    if legend:
        lines.append("; ".join(legend))
    return [*lines, f"the most similar examples would be: {similar}"]


def read_ids(path: Path) -> list[str]:
    """Ids of demonstrations: a JSON list, or one a line."""
    text = read_text(path)
    if not text.lstrip().startswith("["):
        return text.split()
    try:
        found = parse_json(text)
    except json.JSONDecodeError as error:
        raise DataError(f"{path} is not a JSON list ({error.msg})") from error
    return list(map(str, found))


def read_records(path: Path) -> list[dict[str, Any]]:
    """Records of a file by our names; what is said of splits is left out, and pictures are relative to the file."""
    problems = Problems(str(path))
    source = open_source(path, problems)
    records = []
    for number, row in source.rows:
        own: dict[str, Any] = {}
        for key, value in row.items():
            if key not in ("split", "image_id") and value is not None:
                own[OTHER_NAMES.get(key, key)] = value
        image = own.get("image")
        in_file = isinstance(image, str) and "://" not in image
        if in_file and image and not image.startswith("data:"):
            own["image"] = path.parent / image
        records.append(own)
        if not str(own.get("question") or "").strip():
            problems.add(source.place(number), "needs a question")
    if not records:
        problems.add(path.name, "is empty; write one JSON object a line")
    problems.finish()
    return records


def add_demos(
    bundle: Path,
    *,
    jsonl: Path | None = None,
    question: str | None = None,
    answer: str | None = None,
    image: str | None = None,
    id_: str | None = None,
) -> Outcome:
    """Adds demonstrations; they are usable at once.

    BUNDLE: the folder that `lever fit` or `lever pack` wrote
    --jsonl FILE: many: one {question, answer, image, id, meta} record per line
    --question Q: the question of one demonstration
    --answer A: its answer
    --image FILE: its picture
    --id ID: its id (default: made from the content)
    """
    if (jsonl is None) == (question is None):
        raise WrongUsage(
            "give one demonstration with --question and --answer, or many with --jsonl FILE"
        )
    rows = [{"question": question, "answer": answer, "image": image, "id": id_}]
    if jsonl is not None:
        rows = read_records(jsonl)
        for row in rows:
            _require_below(row.get("image"), jsonl.parent)
    selector = _open_bundle(bundle)
    found = selector.add(rows)
    added = []
    for name in found:
        if name not in found.known:
            added.append(name)
    told = _changed(selector, "added", added, bundle)
    lines = list(told.shown)
    if found.known:
        lines.append(f"there already, the same in all: {', '.join(found.known)}")
    return Outcome({**told.value, "already_there": found.known}, lines)


def _require_below(image: Any, folder: Path) -> None:
    """Refuse a picture that a file of records names outside its own folder."""
    root = folder.resolve()
    if isinstance(image, Path) and not image.resolve().is_relative_to(root):
        raise LeverError(f"the picture {image} lies outside {folder}")


def delete_demos(
    bundle: Path, ids: Sequence[str] = (), *, from_: Path | None = None
) -> Outcome:
    """Deletes demonstrations for good.

    BUNDLE: the bundle's folder
    ID: ids, as `lever demos list` shows them
    --from FILE: a file of ids: one per line, or a JSON list
    """
    named = [*ids, *(read_ids(from_) if from_ else [])]
    if not named:
        raise WrongUsage("name the demonstrations to delete: ID ID ..., or --from FILE")
    selector = _open_bundle(bundle)
    selector.delete(named)
    return _changed(selector, "deleted", named, bundle)


def list_demos(bundle: Path, *, limit: int = 0) -> Outcome:
    """Lists the demonstrations.

    BUNDLE: the bundle's folder
    --limit N: list at most so many; 0: all
    """
    selector = _open_bundle(bundle)
    rows = []
    lines = []
    for number, (_, demo) in enumerate(selector.source.all()):
        if limit and number >= limit:
            break
        rows.append(demo.as_json())
        lines.append(f"{demo.id}  {demo.question}  ->  {demo.answer}")
    return Outcome({"demos": rows, **_about(selector)}, lines)


def _open_bundle(folder: Path) -> Selector:
    from leverplus.bundle.selector import Selector

    selector = Selector.load(folder)
    if not selector.source.writable:
        raise LeverError(
            f"{folder} is a run folder; type `lever pack {folder} --out DIR` and use DIR"
        )
    return selector


def _about(selector: Selector) -> dict[str, Any]:
    return {"count": len(selector), "fingerprint": selector.fingerprint}


def _changed(
    selector: Selector, what: str, ids: Sequence[str], folder: Path
) -> Outcome:
    line = f"{len(ids)} {what}; {folder} holds {len(selector):,}"
    return Outcome({what: list(ids), **_about(selector)}, [line])


def audit_demos(source: str, *, items: str | None = None, show: int = 8) -> Outcome:
    """Shows the most useful and the most harmful demonstrations, by recorded answers.

    SOURCE: a bundle of `lever fit`, a run folder, or recorded answers (a Parquet file, tables:NAME)
    --items FILE: the items as JSON lines, so that texts are shown and not only ids
    --show N: how many of either end to show (default 8; a run keeps 6)
    """
    folder = Path(source).expanduser()
    if items is None and source.startswith("tables:okvqa"):
        items = SHIPPED_ITEMS
    examples: Iterable[Demo | Item] = ()
    if folder.is_dir():
        found = _run_effects(run_of_bundle(folder))
        if items is None and run_of_bundle(folder) != folder:
            examples = [demo for _, demo in _open_bundle(folder).source.all()]
        elif items is None:
            examples = load_run(folder).demonstrations
    else:
        found = _table_effects(source)
    if items is not None:
        problems = Problems(items)
        examples = read_examples(items, ReadOptions(), problems).items
        problems.finish()
    texts = {}
    for item in examples:
        texts[str(item.id)] = f"{item.question[:LONGEST_TEXT]} -> {item.answer}"
    lines = [
        f"{found['answers']:,} answers with one demonstration, {found['queries']:,} queries, {found['demonstrations']:,} "
        f"demonstrations shown three times or more; effects have a standard deviation of "
        f"{100 * found['effect_sd']:.1f} points, {100 * found['reliability']:.0f} % of what is estimated is real"
    ]
    if found["is_noise"]:
        lines.append(
            "these effects are noise: show demonstrations to more queries before anything is done with them"
        )
    for name in ("useful", "harmful"):
        lines.append(
            f"\nmost {name}: effect in points (standard error), queries shown to, what it says"
        )
        ends = []
        for row in found[name][:show]:
            text = row["demo"]
            if text in texts:
                text += f": {texts[text]}"
            ends.append({**row, "text": text})
            lines.append(
                f"  {100 * row['effect']:+.1f} ({100 * row['error']:.1f})  {row['shown']}  {text}"
            )
        found[name] = ends
    return Outcome(found, lines)


def _run_effects(folder: Path) -> dict[str, Any]:
    """What training measured of the demonstrations of a run."""
    from leverplus.web.runs import measured_effects, read_run

    own = measured_effects(read_run(folder, with_predictions=False))
    if own is None:
        raise DataError(
            f"the training of {folder} showed too few demonstrations to several queries, one in a prompt, to say what "
            "each is worth; give `lever fit` more --calls"
        )
    return own


def _table_effects(names: str) -> dict[str, Any]:
    """Effects of all demonstrations of recorded tables, by their answers with one demonstration in the prompt."""
    import numpy as np

    from leverplus.arms.audit import audit
    from leverplus.arms.effects import Measured
    from leverplus.scores.tables import read_table

    files = []
    for name in names.split(","):
        whole = name.strip()
        if whole.startswith(SHIPPED) and not Path(whole).suffix:
            whole += ".parquet"
        path = shipped(whole)
        if not path.is_file():
            raise MissingFile(
                f"there is no {whole}; name a bundle, a run folder, or a recorded table (FILE.parquet)"
            )
        files.append(path)
    table = read_table(files)
    alone = np.flatnonzero(np.diff(table.starts) == 1)
    if not len(alone):
        raise DataError(
            f"{names} holds no answer with one demonstration; effects are measured with one demonstration in the prompt"
        )
    demos = table.demos[table.starts[alone]]
    scores = table.accuracy[alone]
    measured = Measured.of(table.queries[alone], demos, scores, len(table.ids))
    return audit(measured, table.ids)


def pack(
    run: Path,
    *,
    out: Path,
    arm: str | None = None,
    shots: int | None = None,
    licence: str = "",
    store: Path | None = None,
) -> Outcome:
    """Makes a bundle from a run folder.

    RUN: a run folder
    --out DIR: a new folder for the bundle
    --arm ARM: the way of choosing (default: what the evaluation advises)
    -k --shots N: how many demonstrations to show, unless a query says
    --licence TEXT: licence of the demonstrations, for the card (README.md) of the bundle
    """
    from leverplus.bundle.hub import MANIFEST
    from leverplus.run.pack import pack_run

    with opened(run, store, lock=False, at_work=False) as made:
        folder = pack_run(
            made,
            out,
            arm=arm,
            shots=shots,
            licence=licence,
        )
    facts = read_json(folder / MANIFEST)
    size = 0
    for path in folder.rglob("*"):
        if path.is_file():
            size += path.stat().st_size
    value = {"bundle": str(folder), "bytes": size}
    for key in ("arm", "shots", "demonstrations"):
        value[key] = facts[key]
    return Outcome(
        value,
        [
            f"{folder}: arm {facts['arm']}, {shots_name(facts['shots'])}, {facts['demonstrations']['count']:,} demonstrations, "
            f"{size / 1e6:.1f} MB",
            f'next: lever select {folder} --question "..."',
        ],
    )


def serve(
    bundle: str,
    *,
    host: str = "127.0.0.1",
    port: int = 8766,
    name: Sequence[str] = (),
    workers: int = 1,
    threads: int = 2,
    read_only: bool = False,
    no_log: bool = False,
    queue: int = 64,
    seconds: float = 10.0,
    body_mb: float = 20.0,
    grace: int = 30,
    upstream: str = "",
    shots: int | None = None,
    deadline_ms: int = 1000,
    json: bool = False,
) -> None:
    """A bundle as an HTTP service, and as a proxy in front of an OpenAI-compatible server.

    BUNDLE: a bundle, a run folder, or hf://ORG/NAME
    --host H: listen on this address (default 127.0.0.1)
    --port N: the port (default 8766; 0: any free one)
    --name HOST: also answer to this host name
    --workers N: processes that answer (default 1)
    --threads N: threads of each process (default 2)
    --read-only: refuse to add and delete demonstrations
    --no-log: do not log requests to the error output
    --queue N: the most requests that may wait in a process (default 64)
    --seconds S: time limit of a request (default 10)
    --body-mb MB: largest request (default 20)
    --grace S: time to finish requests after SIGTERM (default 30)
    --upstream URL: an OpenAI-compatible server: pass /v1/* on to it, and add demonstrations to chats
    -k --shots N: with --upstream: demonstrations to add to a chat (default: as recommended)
    --deadline-ms MS: with --upstream: if choosing takes longer, pass the chat on unchanged (default 1000)
    """
    # before NumPy and torch are imported, here and in the workers: threads of ours share the cores already
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    from leverplus.web.guard import listen
    from leverplus.web.serve import serve as serve_bundle
    from leverplus.web.service import ServeSettings

    if shots is not None and not upstream:
        raise WrongUsage(
            "--shots belongs to --upstream; clients of the JSON API say how many they want"
        )
    settings = ServeSettings(
        bundle=bundle,
        host=host,
        names=tuple(name),
        upstream=upstream,
        shots=shots,
        deadline_ms=deadline_ms,
        seconds=seconds,
        threads=threads,
        queue=queue,
        workers=workers,
        body_mb=body_mb,
        read_only=read_only,
        log=not no_log,
    )
    for key in ("workers", "threads", "deadline_ms", "seconds", "body_mb"):
        if not 0 < getattr(settings, key) < 1e9:
            raise WrongUsage(
                f"--{key.replace('_', '-')} {getattr(settings, key)}: must be more than 0"
            )
    listening = listen(host, port)
    url = address(host, listening.getsockname()[1])
    also = ""
    if upstream:
        also = f", and passes {url}/v1 on to {upstream}"
    told = Outcome(
        {
            "url": url,
            "bundle": bundle,
            "upstream": upstream or None,
            "pid": os.getpid(),
        },
        [f"{url}/ serves {bundle}{also}; stop with Ctrl-C"],
    )
    try:
        serve_bundle(settings, listening, grace, lambda: show(told, as_json=json))
    except KeyboardInterrupt:
        pass  # SIGTERM and SIGINT arrive here after the requests under way are answered
    finally:
        listening.close()
    print("lever: stopped; requests under way were finished", file=sys.stderr)
