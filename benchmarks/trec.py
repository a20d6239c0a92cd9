"""TREC with SmolLM2: does a learned selector beat the best training-free prompt, from at most 60,000 calls?

    python benchmarks/trec.py --folder DATA                     three seeds, one after the other; hours on a CPU
    python benchmarks/trec.py --folder DATA --jobs 3            three seeds side by side; minutes on one GPU
    python benchmarks/trec.py --folder DATA --vectors FILE      vectors from FILE (written first if it is not there)
    python benchmarks/trec.py --folder DATA --stage report      only the table, from what was measured before
    python benchmarks/trec.py --folder DATA --split dev         everything on dev, test left alone: for development
    python benchmarks/trec.py --folder DATA --recipe trec_few   another recipe: its own budget, if that is below --calls

Recipe `trec_smollm` by default. The checkpoint is chosen on 500 questions held out of train, and so is whether the
selector is shown calibrated; the 500 official test questions are asked once, after all of that. Compared is the mean
over 1-4 shots, items and seeds both resampled, with every arm that is not trained, calibrated and not; the verdict is
against the one that is best on test, which favours the rivals. What the labels give without the model stands beside
it: the vote of the nearest neighbours, and a linear classifier of the vectors.

Everything measured is kept in --work (scores, run folders, one `measured-*.json` a seed), so a stopped run goes on.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from leverplus.embedders.base import Vectors
    from leverplus.evaluation.predictions import Results
    from leverplus.experiment.run import Run
    from leverplus.policies.base import Policy
    from leverplus.types import Item

SHOTS = (1, 2, 3, 4)
VOTES = (1, 4, 64)
PENALTIES = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2)
LEARNED = ("learned", "learned_calibrated")


class KeptVectors:
    """Vectors of texts from a file, for a machine that has no encoder; they keep the encoder's fingerprint."""

    def __init__(self, path: Path) -> None:
        from safetensors import safe_open

        with safe_open(path, "numpy") as file:
            facts = file.metadata()
            self.rows = dict(zip(json.loads(facts["texts"]), file.get_tensor("vectors"), strict=True))
        self.own: dict[str, str] = json.loads(facts["fingerprint"])

    def fingerprint(self) -> Mapping[str, str]:
        return self.own

    def embed(self, items: Sequence[Item], task: Any) -> Vectors:  # noqa: ARG002 the task has no pictures
        from leverplus.embedders.base import Vectors

        text = np.stack([self.rows[item.question] for item in items])
        return Vectors(None, text, np.stack([self.rows[item.answer] for item in items]))


def keep_vectors(run: Run, path: Path) -> None:
    """Write the vectors of every text of the task and of its labels."""
    from safetensors.numpy import save_file

    found: dict[str, Any] = {}
    for split in ("train", "dev", "test"):
        items = run.task.items(split)
        vectors = run.embedder.embed(items, run.task)
        for item, text, answer in zip(items, vectors.text, vectors.answer, strict=True):
            found[item.question], found[item.answer] = text, answer
    facts = {"texts": json.dumps(list(found)), "fingerprint": json.dumps(dict(run.embedder.fingerprint()))}
    part = path.with_name(f".{path.name}")
    save_file({"vectors": np.stack(list(found.values()))}, part, metadata=facts)
    part.replace(path)


def open_seed(args: argparse.Namespace, seed: int) -> Run:
    """The run of one seed: its own folder, one store for all seeds."""
    from leverplus.experiment.opening import open_run
    from leverplus.recipe.recipe import find_recipe, load_recipe

    budget = min(args.calls, load_recipe(args.recipe).score.budget)
    own = [f"task.folder={args.folder}", f"score.budget={budget}", f"model.device={args.device}"]
    recipe = load_recipe(args.recipe, [*own, *args.set])
    folder = Path(args.work) / f"seed{seed}-{recipe.hash}"
    said = time.perf_counter()
    run = open_run(
        recipe,
        find_recipe(args.recipe),
        folder,
        seed=seed,
        store_path=Path(args.work) / "scores.db",
        say=lambda line: print(f"seed {seed}, {time.perf_counter() - said:.0f} s: {line}", file=sys.stderr, flush=True),
    )
    if args.vectors and Path(args.vectors).is_file():
        run.__dict__["embedder"] = KeptVectors(Path(args.vectors))
    return run


def measure(args: argparse.Namespace, seed: int) -> None:
    """Train one seed, choose on dev, ask test once; the first seed also runs every other arm."""
    import torch

    from leverplus.experiment.train import train_run
    from leverplus.scoring.scorer import EVALUATION

    run = open_seed(args, seed)
    path = measured_path(args, run)
    if path.is_file():
        return
    torch.set_num_threads(args.threads or max(1, torch.get_num_threads() // args.jobs))
    started, worked = time.perf_counter(), time.process_time()
    policy = train_run(run)
    splits = {"dev": on_split(run, policy, "dev", rivals=seed == 0)}
    calls = run.calls()
    if calls > args.calls:
        raise SystemExit(f"seed {seed} asked for {calls:,} calls, more than the {args.calls:,} allowed")
    if args.split == "test":
        splits["test"] = on_split(run, policy, "test", rivals=seed == 0)
    found = {
        "seed": seed,
        "recipe_hash": run.recipe.hash,
        "backend": dict(run.backend.fingerprint()),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "calls": calls,
        "eval_calls": run.scorer.meter.calls(EVALUATION),
        "fresh_calls": run.scorer.meter.fresh,
        "tokens": run.scorer.meter.tokens,
        "model_seconds": run.scorer.meter.seconds,
        "seconds": time.perf_counter() - started,
        "cpu_seconds": time.process_time() - worked,
        "splits": splits,
    }
    part = path.with_name(f".{path.name}")
    part.write_text(json.dumps(found))
    part.replace(path)


def measured_path(args: argparse.Namespace, run: Run) -> Path:
    return Path(args.work) / f"measured-{args.split}-seed{run.seed}-{run.recipe.hash}.json"


def on_split(run: Run, policy: Policy, split: str, *, rivals: bool) -> dict[str, Any]:
    """Accuracies of every item by arm and shots: the selector's, and with `rivals` those of the other arms."""
    from leverplus.evaluation import arms
    from leverplus.evaluation.calibration import add_calibrated
    from leverplus.evaluation.evaluate import run_arms
    from leverplus.evaluation.predictions import Prediction, Results
    from leverplus.experiment.evaluate import evaluation_context
    from leverplus.scoring.scorer import EVALUATION, TRAINING

    context = evaluation_context(run, run.chosen_items(split, 0))
    results = Results.of(context.queries)
    if rivals:
        results = run_arms(context, run.recipe.eval, None, 1.0, run.recipe.pool.mmr_lambda)
        for neighbours in VOTES:
            results.add(f"label_vote_{neighbours}", 0, arms.label_vote_arm(context, 1.0, neighbours))
        results.add("linear_classifier", 0, linear_classifier(run, context.queries))
    own = Results.of(context.queries)
    purpose = TRAINING if split == "dev" else EVALUATION  # what a choice is made from counts as training
    for shots, lists in arms.learned(policy, context.pools, context.table, SHOTS).items():
        prompts = [(pool.query, demos) for pool, demos in zip(context.pools, lists, strict=True)]
        own.add("learned", shots, [Prediction.of(s) for s in run.scorer.score(prompts, purpose, "learned")])
    add_calibrated(own, run.task)
    return {"items": list(results.items), "images": list(results.images), "arms": {**table(results), **table(own)}}


def table(results: Results) -> dict[str, dict[str, list[float]]]:
    return {arm: {str(n): results.accuracy(arm, n).tolist() for n in results.shots(arm)} for arm in results.draws}


def linear_classifier(run: Run, queries: Sequence[Item]) -> list[Any]:
    """Softmax regression from question vectors to labels, its penalty chosen on dev: what labels give without a model.

    It reads every training label, the selector only what the model makes of them.
    """
    import torch

    from leverplus.evaluation.predictions import Prediction

    labels = list(run.scorer.labels)
    train, dev = run.demonstrations, run.task.items("dev")
    vectors = {name: _text(run, items) for name, items in (("train", train), ("dev", dev), ("own", queries))}
    truth = torch.tensor([labels.index(item.answer) for item in train])
    best: tuple[float, Any] = (-1.0, None)
    for penalty in PENALTIES:
        weights = torch.zeros(vectors["train"].shape[1] + 1, len(labels), requires_grad=True)
        optimizer = torch.optim.LBFGS([weights], max_iter=100, line_search_fn="strong_wolfe")

        def loss(weights: Any = weights, optimizer: Any = optimizer, penalty: float = penalty) -> Any:
            optimizer.zero_grad()
            fit = torch.nn.functional.cross_entropy(vectors["train"] @ weights[:-1] + weights[-1], truth)
            total = fit + penalty * weights[:-1].square().sum()
            total.backward()
            return total

        optimizer.step(loss)
        final = weights.detach()
        guessed = (vectors["dev"] @ final[:-1] + final[-1]).argmax(1).tolist()
        right = float(np.mean([labels[g] == item.answer for g, item in zip(guessed, dev, strict=True)]))
        best = max(best, (right, final), key=lambda pair: pair[0])
    guesses = (vectors["own"] @ best[1][:-1] + best[1][-1]).argmax(1).tolist()
    return [
        Prediction(q.id, (), labels[g], float(labels[g] == q.answer)) for q, g in zip(queries, guesses, strict=True)
    ]


def _text(run: Run, items: Sequence[Item]) -> Any:
    import torch

    return torch.from_numpy(run.embedder.embed(items, run.task).text)


def report(args: argparse.Namespace) -> dict[str, Any]:
    """What all seeds show together: accuracies with intervals, and the chosen form of the selector against each arm."""
    from leverplus.stats import SeededComparison, compare, compare_seeds, mean_interval

    runs = [open_seed(args, seed) for seed in range(args.seeds)]
    found = [json.loads(measured_path(args, run).read_text()) for run in runs]
    splits = [own["splits"][args.split] for own in found]
    images = splits[0]["images"]
    if any(own["items"] != splits[0]["items"] for own in splits):
        raise SystemExit("the seeds were evaluated on different items; delete --work and run again")
    on_dev = {
        arm: float(np.mean([mean_of(own["splits"]["dev"]["arms"][arm]).mean() for own in found])) for arm in LEARNED
    }
    chosen = max(LEARNED, key=lambda arm: on_dev[arm])
    rows: dict[str, Any] = {}
    for arm, by_shots in splits[0]["arms"].items():
        stack = {
            n: np.stack([np.asarray(own["arms"][arm][n]) for own in splits if arm in own["arms"]]) for n in by_shots
        }
        mean = np.mean(list(stack.values()), axis=0)
        rows[arm] = {
            "shots": {n: float(values.mean()) for n, values in stack.items()},
            "mean": float(mean.mean()),
            "ci95": list(mean_interval(mean.mean(axis=0), clusters=images)),
            "dev": float(mean_of(found[0]["splits"]["dev"]["arms"][arm]).mean()) if arm not in on_dev else on_dev[arm],
            "seeds": [float(row.mean()) for row in mean],
        }
    learned = np.stack([mean_of(own["arms"][chosen]) for own in splits])
    compared = {}
    for arm, by_shots in splits[0]["arms"].items():
        if arm not in LEARNED:
            got = (
                compare_seeds(learned, mean_of(by_shots)[None], clusters=images)
                if len(found) > 1
                else compare(learned[0], mean_of(by_shots), clusters=images)  # of items alone
            )
            compared[arm] = {
                "diff": got.diff,
                "ci95": list(got.ci95),
                "p_value": got.p_value,
                "seed_sd": got.seed_sd[0] if isinstance(got, SeededComparison) else None,
            }
    asked = [arm for arm in rows if arm not in LEARNED and set(rows[arm]["shots"]) == {str(n) for n in SHOTS}]
    rivals = [arm for arm in asked if arm != "majority"]
    best = max(rivals, key=lambda arm: rows[arm]["mean"])
    facts = {
        key: [own[key] for own in found] for key in ("calls", "eval_calls", "fresh_calls", "seconds", "cpu_seconds")
    }
    return {
        "benchmark": "trec",
        "split": args.split,
        "n": len(images),
        "seeds": args.seeds,
        "chosen_on_dev": chosen,
        "best_training_free": best,
        "verdict": compared.get(best),
        "arms": rows,
        "comparisons": compared,
        **facts,
        "recipe_hash": found[0]["recipe_hash"],
        "backend": found[0]["backend"],
        "device": found[0]["device"],
    }


def mean_of(by_shots: Mapping[str, Sequence[float]]) -> Any:
    """Accuracy of every item, averaged over its numbers of shots."""
    return np.mean([np.asarray(values) for values in by_shots.values()], axis=0)


def show(found: Mapping[str, Any]) -> str:
    """The results as a Markdown table and a verdict."""
    best, verdict = found["best_training_free"], found["verdict"]
    lines = ["| arm | 1 | 2 | 3 | 4 | mean (95 % interval) | learned less this |", "|---|---|---|---|---|---|---|"]
    for arm, row in sorted(found["arms"].items(), key=lambda pair: -pair[1]["mean"]):
        cells = [f"{row['shots'][str(n)]:.3f}" if str(n) in row["shots"] else "" for n in SHOTS]
        gap = found["comparisons"].get(arm)
        against = f"{gap['diff']:+.3f} ({gap['ci95'][0]:+.3f} to {gap['ci95'][1]:+.3f})" if gap else ""
        mean = f"{row['mean']:.3f} ({row['ci95'][0]:.3f} to {row['ci95'][1]:.3f})"
        lines.append(f"| {arm} | {' | '.join(cells)} | {mean} | {against} |")
    lines.append("")
    lines.append(
        f"{found['split']}, n = {found['n']}, {found['seeds']} seeds, {max(found['calls']):,} calls at most a seed; "
        f"{found['chosen_on_dev']} was chosen on dev; {found['device']}, seconds a seed: "
        + ", ".join(f"{s:.0f}" for s in found["seconds"])
    )
    if verdict:
        low, high = verdict["ci95"]
        word = "above zero" if low > 0 else "below zero" if high < 0 else "zero is inside"
        lines.append(
            f"against the best training-free prompt ({best}): {100 * verdict['diff']:+.1f} points, "
            f"95 % interval {100 * low:+.1f} to {100 * high:+.1f} ({word}), p = {verdict['p_value']:.2g}"
        )
    return "\n".join(lines)


def side_by_side(args: argparse.Namespace) -> None:
    """Every seed in a process of its own, `jobs` at a time; the first that fails stops the rest."""
    from leverplus.backends.hf.files import find_model

    find_model(open_seed(args, 0).recipe.model)  # unpacked once, before the seeds look for it
    waiting, running = list(range(args.seeds)), []
    while waiting or running:
        while waiting and len(running) < args.jobs:
            command = [sys.executable, __file__, *sys.argv[1:], "--one", str(waiting.pop(0))]
            running.append(subprocess.Popen(command))
        time.sleep(0.2)
        for process in [process for process in running if process.poll() is not None]:
            running.remove(process)
            if process.returncode:
                for other in running:
                    other.terminate()
                raise SystemExit(process.returncode)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", required=True, help="where TREC.train.all and TREC.test.all are")
    parser.add_argument(
        "--recipe", default="trec_smollm", help="what is trained; trec_few: the stages of best, few calls"
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--calls", type=int, default=60_000, help="most calls of a seed for training and dev selection")
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    parser.add_argument("--jobs", type=int, default=1, help="seeds side by side")
    parser.add_argument("--threads", type=int, default=0, help="threads a seed; 0: all there are, shared by the jobs")
    parser.add_argument("--split", default="test", choices=("dev", "test"))
    parser.add_argument("--stage", default="all", choices=("all", "vectors", "measure", "report"))
    parser.add_argument("--work", default="runs/trec", help="where scores, runs and measurements are kept")
    parser.add_argument("--vectors", default="", help="file of vectors, read if it is there and else written")
    parser.add_argument("--out", default="", help="file of the results, JSON")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="another recipe setting")
    parser.add_argument("--one", type=int, default=None, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one is not None:
        measure(args, args.one)
        return
    if args.vectors and args.stage in ("all", "vectors") and not Path(args.vectors).is_file():
        keep_vectors(open_seed(args, 0), Path(args.vectors))
    if args.stage in ("all", "measure"):
        side_by_side(args)
    if args.stage in ("all", "report"):
        found = report(args)
        print(show(found))
        print(json.dumps(found))
        if args.out:
            Path(args.out).write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
