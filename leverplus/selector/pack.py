"""Writes bundles: from a run, by any arm, or from demonstrations and vectors that somebody brings."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from leverplus import rundir
from leverplus.errors import LeverError
from leverplus.evaluation.evaluate import choose_ranking
from leverplus.experiment.pilot import fixed_lists
from leverplus.experiment.ranking import rankings_of
from leverplus.experiment.train import trained_policy
from leverplus.ranking.ranking import RANKED
from leverplus.rundir import (
    SHIPPED,
    disk_sentence,
    make_private_folder,
    moved_paths,
    read_json,
    staged_folder,
    versions,
    write_json,
    write_text,
)
from leverplus.selector.bundle import CARD, CELLS, DEMOS, ENCODER, FORMAT, MANIFEST, SELECTOR, vector_file
from leverplus.selector.card import write_card
from leverplus.selector.choose import ARMS, EFFECT, FEWEST, MOST_READ, candidates_of, weight_of
from leverplus.selector.corpus import FIELDS, index_vectors
from leverplus.selector.index import CELLS_ABOVE, FLAT_ABOVE, learn_cells
from leverplus.selector.query import pixel_digest
from leverplus.selector.ranked import LABELS, ranking_facts, write_labels
from leverplus.selector.sources import picture_bytes
from leverplus.selector.store import DemoStore, Entry, KeptPicture
from leverplus.training.checkpoint import save_checkpoint
from leverplus.types import Item, ItemId

if TYPE_CHECKING:
    from leverplus.experiment.run import Run
    from leverplus.policies.base import Policy
    from leverplus.ranking.labels import LabelModel
    from leverplus.ranking.ranking import Ranking

SHOTS = 4
KEPT_AT_ONCE = 256
"""Demonstrations whose pictures are in memory together while a bundle is written."""


@dataclass(frozen=True)
class BundlePlan:
    """How a bundle chooses: what `bundle.json` says beside the demonstrations."""

    arm: str
    shots: int = SHOTS
    text_weight: float = 1.0
    candidates: int = FEWEST
    mmr_lambda: float = 0.7
    ranking: Mapping[str, Any] | None = None
    """Arms that rank: the weights of the terms (`leverplus.selector.ranked`)."""
    fixed: tuple[str, ...] = ()
    prompt: Mapping[str, Any] = field(default_factory=dict)
    embedder: Mapping[str, Any] = field(default_factory=dict)
    task: Mapping[str, Any] = field(default_factory=dict)
    model: Mapping[str, Any] = field(default_factory=dict)
    figures: Mapping[str, Any] = field(default_factory=dict)
    licence: str = ""


def write_bundle(
    folder: Path,
    recipe: BundlePlan,
    entries: Iterable[tuple[Entry, KeptPicture | None]],
    vectors: Mapping[str, NDArray[Any]],
    *,
    policy: Policy | None = None,
    recipe_hash: str = "",
    encoder: Path | None = None,
    numbers: Mapping[str, Mapping[str, float]] | None = None,
    cells: bool | None = None,
    labels: LabelModel | None = None,
    called: str = "",
) -> Path:
    """A bundle in a new folder, which appears whole or not at all.

    Row r of every array of `vectors` belongs to entry r. `numbers` are values by name and id, such as effects. `cells`
    says whether vectors are searched by cells; by itself above a million. `labels` are what a ranked arm goes by.
    `called` is the name on its card, where the folder is moved afterwards.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise LeverError(f"{folder} exists already; choose another folder with --out DIR")
    if recipe.arm not in ARMS:
        raise LeverError(
            f'arm "{recipe.arm}" shows no demonstrations, or is not known; choose one of {", ".join(ARMS)}'
        )
    with disk_sentence(folder):
        make_private_folder(folder.parent)
        if folder.is_dir():
            folder.rmdir()  # an empty folder that somebody made for it
    used = {name: block for name, block in vectors.items() if name in FIELDS}
    with staged_folder(folder) as place:
        place.chmod(0o700)
        about = _write_demos(place / DEMOS, entries, len(used["text"]), numbers or {})
        half = len(used["text"]) > FLAT_ABOVE
        for name, block in used.items():
            _write_vectors(place / vector_file(name), block, half=half)
        if cells if cells is not None else len(used["text"]) > CELLS_ABOVE:
            _write_cells(place, used, recipe)
        if policy is not None:
            save_checkpoint(place / SELECTOR, policy, recipe_hash)
        if labels is not None:
            store_rows = _rows_of(place / DEMOS, labels.items)
            write_labels(place / LABELS, labels, store_rows)
        if encoder is not None:
            _copy_encoder(encoder, place / ENCODER)
        facts = {"format": FORMAT, "made_by": f"leverplus {versions()['leverplus']}", **asdict(recipe)}
        facts |= {"fixed": list(recipe.fixed), "demonstrations": about}
        facts["fields"] = {name: int(block.shape[1]) for name, block in used.items()}
        write_json(place / MANIFEST, facts)
        write_text(place / CARD, write_card(facts, called or folder.name))
    return folder


def _write_demos(
    path: Path,
    entries: Iterable[tuple[Entry, KeptPicture | None]],
    rows: int,
    numbers: Mapping[str, Mapping[str, float]],
) -> dict[str, Any]:
    store = DemoStore(path, create=True)
    with store.change():
        part: list[tuple[Entry, KeptPicture | None]] = []
        for pair in entries:
            part.append(pair)
            if len(part) >= KEPT_AT_ONCE:
                _keep(store, part)
                part = []
        _keep(store, part)
        if store.rows != rows:
            raise LeverError(f"{store.rows} demonstrations, but vectors of {rows}; embed them again")
        for name, values in numbers.items():
            places = store.rows_of([ItemId(item) for item in values])
            store.set_numbers(name, {places[ItemId(item)]: value for item, value in values.items() if item in places})
        store.set_facts({"packed_rows": str(rows), "packed_change": str(store.last_change())})
    about = {"count": store.count, "fingerprint": store.fingerprint}
    store.close()
    return about


def _rows_of(path: Path, items: Sequence[ItemId]) -> dict[ItemId, int]:
    store = DemoStore(path)
    found = store.rows_of(items)
    store.close()
    return found


def _keep(store: DemoStore, part: Sequence[tuple[Entry, KeptPicture | None]]) -> None:
    if part:
        store.add([entry for entry, _ in part], [picture for _, picture in part if picture is not None])


def _write_vectors(path: Path, block: NDArray[Any], *, half: bool) -> None:
    kind = np.float16 if half else np.float32
    out = np.lib.format.open_memmap(path, mode="w+", dtype=kind, shape=block.shape)
    for start in range(0, len(block), 65_536):
        out[start : start + 65_536] = block[start : start + 65_536]
    out.flush()


def _write_cells(place: Path, vectors: Mapping[str, NDArray[Any]], recipe: BundlePlan) -> None:
    weight = 1.0 if "image" not in vectors else recipe.text_weight
    table = learn_cells(index_vectors(vectors, weight))
    if table is not None:
        np.savez(
            place / CELLS, centres=table.centres, assigned=table.assigned, opened=table.opened, recall=table.recall
        )


def _copy_encoder(source: Path, target: Path) -> None:
    """The folder, or the one file, that the embedder was read from."""
    if source.is_dir():
        shutil.copytree(source, target)
    else:
        target.mkdir()
        shutil.copyfile(source, target / source.name)


def pack_run(
    run: Run,
    folder: Path,
    *,
    arm: str | None = None,
    shots: int | None = None,
    fixed: Sequence[str] = (),
    pictures: str = "bytes",
    candidates: int | None = None,
    licence: str = "",
    policy: Policy | None = None,
    numbers: Mapping[str, Mapping[str, float]] | None = None,
    called: str = "",
) -> Path:
    """The bundle of a run: the arm that its evaluation advises, or the one that is named.

    `pictures` is "bytes" (kept inside) or "paths" (looked for where they are now). `numbers` are values by name and
    id that `explain` shows beside what the arm itself brings. `called` is for the card, as in `write_bundle`.
    """
    evaluated = run.folder / rundir.EVAL
    found = read_json(evaluated) if evaluated.is_file() else {}
    arm = arm or advised_arm(found)
    if arm not in ARMS:
        raise LeverError(f'arm "{arm}" shows no demonstrations, or is not known; choose one of {", ".join(ARMS)}')
    given = None
    if arm.startswith("learned"):
        given = policy if policy is not None else trained_policy(run)
        if given.adapters is not None:
            raise LeverError(
                "a selector with adapters in the embedder cannot be packed; train one with sft.lora_rank = 0"
            )
        if arm == "learned_auto" and not given.stops:
            raise LeverError('this selector never stops (select.stop = "never"); pack it as arm learned')
    if arm == "fixed" and not fixed:
        fixed = _list_for_everybody(run, shots, found)
    ranking, labels = _ranking_of(run, arm, found) if arm in RANKED else (None, None)
    how = _recipe(run, arm, found, shots=shots, fixed=fixed, candidates=candidates, licence=licence)
    if ranking is not None:
        how = replace(how, ranking=ranking_facts(ranking, labels))
        own = dict(zip((item.id for item in run.demonstrations), ranking.effect.tolist(), strict=True))
        numbers = {**(numbers or {}), EFFECT: {item: value for item, value in own.items() if value != 0.0}}
    held = {name: block for name, block in vars(run.demonstration_vectors).items() if block is not None}
    wanted = {"text"} | ({"image"} if how.text_weight < 1.0 else set()) | set(given.dims if given is not None else ())
    if ranking is not None:
        wanted |= set(ranking.similarity) | ({"image"} if labels is not None and labels.text_share < 1.0 else set())
    if missing := wanted - set(held):
        raise LeverError(f'arm "{arm}" needs vectors of {", ".join(sorted(missing))}, which this run does not have')
    entries = run_entries(run, pictures)
    return write_bundle(
        folder,
        how,
        entries,
        {name: held[name] for name in FIELDS if name in wanted},
        policy=given,
        recipe_hash=run.recipe.hash,
        encoder=_encoder_of(run),
        numbers=numbers,
        labels=labels,
        called=called,
    )


def _ranking_of(run: Run, arm: str, found: Mapping[str, Any]) -> tuple[Ranking, LabelModel | None]:
    """What a ranked arm goes by, learnt again from labels and from the stored answers of the run's training."""
    share = float(found.get("nearest_both_text_share", run.recipe.pool.text_weight))
    share = 1.0 if run.demonstration_vectors.image is None else share
    own = rankings_of(run, share)
    ranking = choose_ranking(own, arm, share, len(run.demonstrations))
    if ranking is None:
        why = own.why if arm == "effects" else "labels of these items say nothing about answers"
        raise LeverError(f'arm "{arm}" cannot be packed: {why}')
    return ranking, own.labels


def _list_for_everybody(run: Run, shots: int | None, found: Mapping[str, Any]) -> Sequence[str]:
    """The list that the run's pilot found, of the length asked for, else of the one that dev shows best."""
    if not run.recipe.score.pilot:
        raise LeverError("this run did not search for a list for everybody; name one with --fixed ID ID ...")
    lists = fixed_lists(run)
    on_dev = ((found.get("advice") or {}).get("dev_accuracy") or {}).get("fixed") or {}
    if shots is None:
        shots = int(max(on_dev, key=lambda count: (on_dev[count], -int(count)))) if on_dev else max(lists)
    if shots not in lists:
        raise LeverError(f"the run has lists of {', '.join(map(str, lists))} for everybody, not of {shots}")
    return lists[shots]


def advised_arm(found: Mapping[str, Any]) -> str:
    """The best arm on dev that shows demonstrations, or none of them; `learned` where nothing was advised."""
    advice = found.get("advice") or {}
    table = {
        arm.removesuffix("_calibrated"): max(by_shots.values())
        for arm, by_shots in (advice.get("dev_accuracy") or {}).items()
        if arm.removesuffix("_calibrated") in ARMS
    }
    named = str(advice.get("arm") or "").removesuffix("_calibrated")
    if named in ARMS:
        return named
    # among equals the first, but what shows something by a rule before chance and before nothing
    return max(table, key=lambda arm: (table[arm], arm not in ("random", "zero_shot"))) if table else "learned"


def _recipe(
    run: Run,
    arm: str,
    found: Mapping[str, Any],
    *,
    shots: int | None,
    fixed: Sequence[str],
    candidates: int | None,
    licence: str,
) -> BundlePlan:
    recipe, advice = run.recipe, found.get("advice") or {}
    share = float(found.get("nearest_both_text_share", recipe.pool.text_weight))
    text_only = run.demonstration_vectors.image is None
    if text_only and arm in ("nearest_image", "nearest_both", "two_stage"):
        raise LeverError(f'arm "{arm}" compares pictures, and these items have no vectors of pictures')
    if shots is None:
        told = str(advice.get("arm") or "").removesuffix("_calibrated") == arm
        shots = int(advice["shots"]) if told else min(SHOTS, max(recipe.eval.shots))
    count = candidates_of(recipe.pool) if candidates is None else candidates or len(run.demonstrations)
    if arm.startswith("learned") and count > MOST_READ:
        raise LeverError(f"a learned selector reads at most {MOST_READ:,} candidates at once, not {count:,}")
    model, embed = recipe.model, asdict(recipe.embed)
    if arm == "fixed":
        shots = len(fixed)
    elif arm == "zero_shot":
        shots = 0
    return BundlePlan(
        arm=arm,
        shots=shots,
        text_weight=1.0 if text_only else weight_of(arm, share, recipe.pool),
        candidates=count,
        mmr_lambda=recipe.pool.mmr_lambda,
        fixed=tuple(fixed),
        prompt={
            "form": model.prompt,
            "template": model.template,
            "instruction": model.instruction,
            "image_pixels": model.image_pixels,
        },
        embedder={
            "section": {key: embed[key] for key in ("name", "model", "batch", "mean")},
            "fingerprint": dict(run.embedder.fingerprint()),
        },
        task={"name": run.task.name, "version": run.task.version, "metric": run.task.metric},
        model={"backend": recipe.score.backend, "name": model.name},
        figures=figures_of(arm, shots, found),
        licence=licence,
    )


def figures_of(arm: str, shots: int, found: Mapping[str, Any]) -> dict[str, Any]:
    """What an evaluation says of an arm: accuracy on test by shots, the comparison at `shots`, and the calls."""
    if not found:
        return {}
    own = (found.get("arms") or {}).get(arm, {})
    against = [row for row in found.get("comparisons", ()) if row.get("arm") == arm and row.get("shots") == shots]
    keep = ("arm", "baseline", "shots", "n", "diff", "ci95", "p_adjusted")
    return {
        "split": found.get("split"),
        "n": found.get("n"),
        "shots": own.get("shots", {}),
        "comparisons": [{key: row.get(key) for key in keep} for row in against],
        "training_calls": found.get("model_calls"),
        "dev_calls": found.get("dev_calls"),
        "test_calls": found.get("eval_calls"),
        "advice": (found.get("advice") or {}).get("why"),
    }


def run_entries(run: Run, pictures: str) -> Iterable[tuple[Entry, KeptPicture | None]]:
    """The demonstrations of a run with their pictures, one after the other."""
    if pictures not in ("bytes", "paths"):
        raise LeverError(f'pictures = "{pictures}": must be "bytes" or "paths"')
    seen: dict[str, str] = {}
    for item in run.demonstrations:
        kept = None
        if item.image is not None and item.image not in seen:
            image = run.task.image(item)
            seen[item.image] = pixel_digest(image) if image is not None else ""
            kept = _kept(run, item, seen[item.image], pictures)
        name = seen.get(item.image or "") or None
        yield Entry(item.id, item.question, item.answers, item.meta, name), kept


def _kept(run: Run, item: Item, name: str, pictures: str) -> KeptPicture:
    path = Path(item.image or "")
    if pictures == "paths" and path.is_file():
        return KeptPicture(name, None, str(path.resolve()))
    return KeptPicture(name, picture_bytes(run.task, item))


def _encoder_of(run: Run) -> Path | None:
    """The folder or file that the embedder was read from, where that is no package or hub's name."""

    name = run.recipe.embed.model
    if not name or name.startswith(SHIPPED):
        return None
    found = Path(moved_paths(run.folder, run.recipe.embed, ("model",)).get("model", name)).expanduser()
    return found if found.exists() else None
