"""How many of the world's questions do its labels answer, without any model?

    python benchmarks/labels.py                         the training questions of worlds 100, 101 and 102
    python benchmarks/labels.py --worlds 1 2            others

The networks behind the reward `expected_accuracy` say what every answer may expect to score with a training question
that they have not seen; the one that expects most is its answer here. A frozen model with chosen demonstrations may
well be below that: the world is there to study the choice. Intervals are over questions, pictures drawn whole.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from leverplus.experiment.rows import learn_expected_accuracy
from leverplus.experiment.run import Run
from leverplus.metrics import metric_named
from leverplus.pools.build import picture_name
from leverplus.recipe.recipe import load_recipe
from leverplus.stats import mean_interval


def measure(world: int, work: Path) -> tuple[list[float], list[str]]:
    """The accuracy of the likeliest answer of every training question of a world, and the question's picture."""
    recipe = load_recipe("best", [f"task.world_seed={world}", 'reward.components=["expected_accuracy", "gt_prob"]'])
    run = Run(recipe, work, 0, work / "scores.db", at_work=False)
    expected = learn_expected_accuracy(run)
    assert expected is not None
    metric = metric_named(run.task.metric)
    scores = [metric(expected.likeliest(item.id), item.answers) for item in run.demonstrations]
    return scores, [f"{world}:{picture_name(item)}" for item in run.demonstrations]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worlds", type=int, nargs="+", default=[100, 101, 102])
    parser.add_argument("--work", type=Path, default=Path("runs/labels"), help="folder of the vectors")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    everything: tuple[list[float], list[str]] = ([], [])
    for world in args.worlds:
        scores, pictures = measure(world, args.work)
        everything[0].extend(scores)
        everything[1].extend(pictures)
        print(f"world {world}: {sum(scores) / len(scores):.3f} of {len(scores):,} held-out training questions")
    low, high = mean_interval(everything[0], clusters=everything[1])
    print(f"all: {sum(everything[0]) / len(everything[0]):.3f} (95 % interval {low:.3f} to {high:.3f})")


if __name__ == "__main__":
    main()
