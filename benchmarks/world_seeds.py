"""The ladder over several worlds at large n: `python benchmarks/world_seeds.py --seeds 0 1 2 3 --n 4000`.

Needs torch, numpy and safetensors only, so that it can run on a bare GPU machine; minutes there, hours on two cores.
Every ladder figure's mean and standard deviation over the worlds is printed; the promise is at most 0.03.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import numpy as np
import torch
from world_probe import probe  # beside this file

from leverplus.world.weights import ENCODER, MODEL, digest, load_encoder, load_lvlm

LADDER = ("zero_shot", "random", "nearest_image", "nearest_text", "nearest_both", "oracle", "oracle_two_facts")


def broken_promises(worlds: list[dict[str, Any]]) -> list[str]:
    """Promises of docs/world.md that the mean over worlds, or its spread, does not keep."""
    mean = {key: np.mean([world[key] for world in worlds], axis=0) for key in worlds[0]}
    spread = {key: np.std([world[key] for world in worlds], axis=0, ddof=1) for key in worlds[0] if key in LADDER}
    best = max(float(np.mean(mean[arm])) for arm in ("nearest_image", "nearest_text", "nearest_both"))
    promises = {
        "zero-shot 0.28-0.42": 0.28 <= mean["zero_shot"] <= 0.42,
        "random at 4 shots at most 0.45": mean["random"][3] <= 0.45,
        "best nearest arm 0.48-0.68": 0.48 <= best <= 0.68,
        "oracle at least 0.75 at 1 shot": mean["oracle"][0] >= 0.75,
        "oracle at least 0.80 at 4 shots": mean["oracle"][3] >= 0.80,
        "two facts: oracle at 2 shots 0.10 above 1": mean["oracle_two_facts"][1] - mean["oracle_two_facts"][0] >= 0.10,
        "harm at least 5 %": mean["harmed"] >= 0.05,
        "order changes at least 5 %": mean["reversed"] >= 0.05,
        "deviation over worlds at most 0.03": all(float(np.max(values)) <= 0.03 for values in spread.values()),
    }
    return [promise for promise, kept in promises.items() if not kept]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3])
    parser.add_argument("--n", type=int, default=4000)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    started = time.time()
    models = (load_lvlm(), load_encoder())
    worlds = [probe(models, args.device, args.n, seed) for seed in args.seeds]
    figures = {}
    for key in worlds[0]:
        if key in ("n", "world_seed"):
            continue
        values = np.array([world[key] for world in worlds], dtype=float)
        figures[key] = {"mean": np.round(values.mean(0), 4).tolist(), "sd": np.round(values.std(0, ddof=1), 4).tolist()}
        print(f"{key:18s} mean {figures[key]['mean']}  sd {figures[key]['sd']}")
    print(
        json.dumps(
            {
                "n": args.n,
                "seeds": args.seeds,
                "device": args.device,
                "seconds": round(time.time() - started),
                "model": digest(MODEL),
                "encoder": digest(ENCODER),
                "figures": figures,
                "worlds": worlds,
            }
        )
    )
    broken = broken_promises(worlds)
    for promise in broken:
        print(f"not kept: {promise}")
    return 1 if broken else 0


if __name__ == "__main__":
    raise SystemExit(main())
