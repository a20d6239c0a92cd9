"""The ladder over several worlds at large n: `python benchmarks/world_seeds.py --seeds 0 1 2 3 --n 4000`.

Needs torch, numpy and safetensors only, so that it can run on a bare GPU machine; minutes there, hours on two cores.
Every ladder figure's mean and standard deviation over the worlds is printed; the promise is at most 0.03.
"""

from __future__ import annotations

import argparse
import json
import time

import numpy as np
import torch

from leverplus.world.probe import probe
from leverplus.world.weights import ENCODER, MODEL, digest, load_encoder, load_model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3])
    parser.add_argument("--n", type=int, default=4000)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    started = time.time()
    models = (load_model(), load_encoder())
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


if __name__ == "__main__":
    main()
