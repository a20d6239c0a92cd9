"""LoRA in the embedder: it starts as the frozen network, learns with the selector, and travels in its checkpoint."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from leverplus.data.tasks.answers import AnswerRules
from leverplus.data.tasks.base import FileTask
from leverplus.data.types import Item, ItemId
from leverplus.encode.cached import CachedEmbedder, open_embedder
from leverplus.encode.settings import EmbedSection
from leverplus.errors import CheckpointError, RecipeError, TrainingError
from leverplus.learn.checkpoint import load_checkpoint, save_checkpoint
from leverplus.learn.data.rows import FixedRows, Row
from leverplus.learn.loop import StageInputs, frozen_parts, run_stage
from leverplus.learn.policies.base import Policy
from leverplus.learn.policies.build import build_policy
from leverplus.learn.policies.settings import PolicyConfig
from leverplus.learn.policies.table import ItemTable
from leverplus.learn.settings import SftConfig
from leverplus.run.recipe import build_recipe
from leverplus_lab.selectors.adapters import Adapters
from leverplus_lab.selectors.live import LiveEmbedder

pytest.importorskip("transformers", reason="the extra `hf` is not installed")
from tiny_networks import save_dual_model

COLOURS = [
    (230, 20, 20),
    (20, 200, 30),
    (20, 30, 230),
    (240, 240, 60),
    (240, 20, 240),
    (20, 220, 220),
]
POOL = 6


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return save_dual_model(tmp_path_factory.mktemp("dual") / "clip", "clip")


@pytest.fixture(scope="module")
def task(tmp_path_factory) -> FileTask:
    """Pictures of six colours with noise; questions say nothing."""
    place, rng, items = tmp_path_factory.mktemp("colours"), np.random.default_rng(3), []
    for number in range(36):
        colour = np.array(COLOURS[number % 6]) + rng.integers(-90, 90, (8, 8, 3))
        path = place / f"{number}.png"
        Image.fromarray(colour.clip(0, 255).astype(np.uint8)).resize((32, 32)).save(
            path
        )
        items.append(
            Item(
                ItemId(f"i{number:02d}"),
                "what is the color",
                ("red",),
                "train",
                str(path),
                f"{number}",
            )
        )
    return FileTask("colours", items, answers=AnswerRules("vqa_accuracy", "vqa"))


@pytest.fixture
def embedder(folder, tmp_path) -> CachedEmbedder:
    found = open_embedder(
        EmbedSection(name="clip", model=str(folder), device="cpu", batch=16),
        tmp_path / "vectors",
    )
    assert isinstance(found, CachedEmbedder)
    return found


def table_of(embedder: CachedEmbedder, task: FileTask) -> ItemTable:
    items = task.items("train")
    vectors = embedder.embed(items, task)
    blocks = {"image": vectors.image, "text": vectors.text, "answer": vectors.answer}
    table = ItemTable([item.id for item in items], blocks)
    table.live = LiveEmbedder(embedder, task).items(items)
    return table


def adapters_of(embedder: CachedEmbedder, seed: int = 0) -> Adapters:
    revision = embedder.fingerprint()["revision"]
    return Adapters.around(
        embedder.encoder.network, revision, rank=4, alpha=8.0, dropout=0.0, seed=seed
    )


def policy_of(table: ItemTable) -> Policy:
    config = PolicyConfig(
        query_fields=("image",),
        demo_fields=("image",),
        hidden=16,
        fuse="mean",
        dropout=0.0,
        attention_dropout=0.0,
    )
    return build_policy(config, table.dims, seed=1)


def same_colour_rows(count: int = 30) -> list[Row]:
    """For every query a pool of one picture a colour, the right one at a place that differs."""
    rows = []
    for query in range(6, 6 + count):
        pool = torch.tensor([(colour + query) % 6 for colour in range(POOL)])
        right = int((pool == query % 6).nonzero()[0])
        one = torch.ones(1)
        rows.append(
            Row(
                ItemId(f"i{query:02d}"),
                query,
                pool,
                torch.tensor([[right]]),
                one,
                one * torch.nan,
                one,
            )
        )
    return rows


def test_the_additions_are_the_formula_by_hand() -> None:
    network = torch.nn.ModuleDict({"q_proj": torch.nn.Linear(2, 2, bias=False)})
    network["q_proj"].weight.data = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    adapters = Adapters({"q_proj": (2, 2)}, "r", rank=1, alpha=3.0, dropout=0.0)
    adapters.down["q_proj"].data = torch.tensor([[1.0, 2.0]])
    adapters.up["q_proj"].data = torch.tensor([[1.0], [-1.0]])
    x = torch.tensor([[1.0, 1.0]])
    with adapters.active(network, "r"):
        torch.testing.assert_close(
            network["q_proj"](x), torch.tensor([[10.0, -8.0]])
        )  # 1 + 3 * 3, 1 - 3 * 3
    torch.testing.assert_close(network["q_proj"](x), x)


@pytest.mark.slow
def test_fresh_adapters_leave_every_vector_as_it_is(embedder, task) -> None:
    table = table_of(embedder, task)
    rows = torch.arange(10)
    with torch.no_grad():
        blocks = table.live.encode(
            rows, ("image", "text", "answer"), adapters_of(embedder)
        )
    for name, block in blocks.items():
        torch.testing.assert_close(block, table.blocks[name][rows], atol=1e-5, rtol=0)


def test_adapters_sit_on_every_attention_projection_and_gradients_reach_all_of_them(
    embedder, task
) -> None:
    table, adapters = table_of(embedder, task), adapters_of(embedder)
    assert (
        len(adapters.shapes) == 2 * 2 * 4
    )  # pictures and texts, two layers, four projections
    for matrix in adapters.up.values():
        torch.nn.init.normal_(matrix, std=0.1)
    blocks = table.live.encode(torch.arange(8), ("image", "answer"), adapters)
    sum((block * torch.randn_like(block)).sum() for block in blocks.values()).backward()
    assert all(
        parameter.grad is not None and parameter.grad.any()
        for parameter in adapters.parameters()
    )
    assert all(
        parameter.grad is None for parameter in embedder.encoder.network.parameters()
    )


def test_without_gradients_a_picture_is_embedded_once_until_the_adapters_change(
    embedder, task, monkeypatch
) -> None:
    table, adapters, seen = table_of(embedder, task), adapters_of(embedder), []
    see = embedder.encoder.pictures
    monkeypatch.setattr(
        embedder.encoder,
        "pictures",
        lambda batch: seen.append(len(batch)) or see(batch),
    )
    with torch.no_grad():
        before = table.live.encode(torch.arange(9), ("image",), adapters)["image"]
        table.live.encode(torch.arange(9), ("image",), adapters)
        assert sum(seen) == 9
        for matrix in adapters.up.values():
            matrix.add_(0.5)
        after = table.live.encode(torch.arange(9), ("image",), adapters)["image"]
    assert sum(seen) == 18
    assert not torch.allclose(before, after, atol=1e-3)


@pytest.mark.slow
def test_training_changes_the_adapters_and_not_the_network_and_the_loss_falls(
    embedder, task, tmp_path
) -> None:
    table = table_of(embedder, task)
    policy = policy_of(table)
    policy.adapters = adapters_of(embedder)
    frozen = {
        name: value.clone()
        for name, value in embedder.encoder.network.state_dict().items()
    }
    before = {
        name: value.clone() for name, value in policy.adapters.state_dict().items()
    }
    config = SftConfig(
        epochs=6, lr=5e-3, batch_size=10, lora_rank=4, schedule="constant", warmup=0.0
    )
    result = run_stage(
        policy,
        FixedRows(same_colour_rows()),
        StageInputs("sft", config, table, folder=tmp_path / "run"),
    )
    losses = [epoch["loss/total"] for epoch in result.history]
    assert losses[-1] < 0.7 * losses[0]
    assert all(
        torch.equal(value, frozen[name])
        for name, value in embedder.encoder.network.state_dict().items()
    )
    moved = [
        name
        for name, value in policy.adapters.state_dict().items()
        if not torch.equal(value, before[name])
    ]
    assert len([name for name in moved if "vision" in name]) == 2 * 2 * 4
    again, description = load_checkpoint(tmp_path / "run" / "checkpoints" / "sft")
    assert description["adapters"]["rank"] == 4
    rows = same_colour_rows(4)
    features = table.features_of_rows(
        torch.tensor([row.query_row for row in rows]), [row.pool_rows for row in rows]
    )
    with torch.no_grad():
        own, loaded = (
            p.eval().logits(p.prepare(features), rows[0].sequences.expand(4, 1, 1))
            for p in (policy, again)
        )
    assert torch.equal(own, loaded)
    with torch.no_grad():
        policy.adapters = None
        assert not torch.allclose(
            own,
            policy.logits(policy.prepare(features), rows[0].sequences.expand(4, 1, 1)),
        )


@pytest.mark.slow
def test_adapters_alone_learn_while_the_selector_is_held_still(embedder, task) -> None:
    table = table_of(embedder, task)
    policy = policy_of(table)
    policy.adapters = adapters_of(embedder)
    parts = tuple(name for name in policy.named_groups() if name != "adapters")
    config = SftConfig(
        epochs=5,
        lr=5e-3,
        batch_size=10,
        lora_rank=4,
        schedule="constant",
        warmup=0.0,
        freeze=parts,
    )
    result = run_stage(
        policy, FixedRows(same_colour_rows()), StageInputs("sft", config, table)
    )
    losses = [epoch["loss/total"] for epoch in result.history]
    assert losses[-1] < 0.9 * losses[0]


def test_stages_after_sft_leave_the_adapters_alone(embedder, task) -> None:
    from leverplus.learn.settings import RceConfig

    policy = policy_of(table_of(embedder, task))
    assert frozen_parts(policy, RceConfig()) == ()
    policy.adapters = adapters_of(embedder)
    assert frozen_parts(policy, RceConfig(freeze=("head",))) == ("head", "adapters")
    assert frozen_parts(policy, SftConfig(lora_rank=4)) == ()


def test_adapters_of_another_network_are_refused(embedder, task, tmp_path) -> None:
    table = table_of(embedder, task)
    policy = policy_of(table)
    policy.adapters = Adapters(
        adapters_of(embedder).shapes, "other", rank=4, alpha=8.0, dropout=0.0
    )
    save_checkpoint(tmp_path / "c", policy)
    loaded, _ = load_checkpoint(tmp_path / "c")
    features = table.features_of_rows(torch.tensor([7]), [torch.arange(6)])
    with pytest.raises(
        CheckpointError, match="trained for an embedder of revision other"
    ):
        loaded.prepare(features)
    table.live = None
    with pytest.raises(TrainingError, match="give it a table of live items"):
        loaded.prepare(table.features_of_rows(torch.tensor([7]), [torch.arange(6)]))
    with pytest.raises(TrainingError, match="no attention projections"):
        Adapters.around(
            torch.nn.Linear(2, 2), "r", rank=1, alpha=1.0, dropout=0.0, seed=0
        )


def test_a_recipe_that_asks_for_adapters_where_there_is_nothing_to_adapt_is_refused() -> (
    None
):
    with pytest.raises(RecipeError) as caught:
        build_recipe("test", {"sft": {"lora_rank": 4}}, "test")
    assert caught.value.problems == [
        'sft.lora_rank = 4: needs embed.name = "clip", "siglip" or "sentence"'
    ]
    with pytest.raises(RecipeError, match=r"sft must be the first of train\.stages"):
        build_recipe(
            "t",
            {
                "sft": {"lora_rank": 4},
                "embed": {"name": "clip"},
                "train": {"stages": ["rce", "sft"]},
            },
            "t",
        )
