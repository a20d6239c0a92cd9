"""Checkpoints of the earlier code's selectors over ids (v0) and of v2 with adapters: same scores, back as they were."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from legacy_files import OldSelector, identical
from old_ids import OldIds, lora_state
from tiny_world import TINY, TinyRun
from torch.nn import functional as F

from leverplus.cli.main import main
from leverplus.errors import CheckpointError, RecipeError
from leverplus.learn.checkpoint import load_checkpoint, tensors_of
from leverplus.learn.given import read_given
from leverplus.learn.policies.base import Features
from leverplus.learn.policies.build import build_policy
from leverplus.run.recipe import find_recipe, load_recipe
from leverplus.run.run import load_run, open_run
from leverplus.run.train import train_run
from leverplus_lab.legacy.checkpoints import PREFIX, read_legacy, write_legacy
from leverplus_lab.legacy.imports import import_file
from leverplus_lab.legacy.presets import ID_GPT2_FAITHFUL

pytest.importorskip("transformers", reason="the extra `hf` is not installed")
sys.path += [str(Path(__file__).parents[1] / "encode")]
from tiny_networks import save_dual_model

ITEMS, WIDTH = 12, 16
KINDS = [("gpt2", False), ("gpt2", True), ("lstm", False), ("lstm", True)]


def old_ids(
    model: str, adapter: bool, items: int = ITEMS, vectors: int = WIDTH
) -> OldIds:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(4)
        return OldIds(model, items, WIDTH, vectors, adapter=adapter).eval()


def lightning(model: torch.nn.Module) -> dict[str, Any]:
    state = {"lever_lm." + name: tensor for name, tensor in model.state_dict().items()}
    return {"epoch": 3, "hyper_parameters": {"lr": 1e-4}, "state_dict": state}


def save(value: object, path: Path) -> Path:
    torch.save(value, path)
    return path


@pytest.mark.parametrize(("model", "adapter"), KINDS)
def test_a_selector_over_ids_scores_as_the_earlier_network(
    tmp_path: Path, model: str, adapter: bool
) -> None:
    earlier = old_ids(model, adapter)
    legacy = read_legacy(save(lightning(earlier), tmp_path / "v0.ckpt"))
    assert legacy.preset == f"id_{model}_faithful"
    noise = torch.Generator().manual_seed(1)
    query = {
        name: F.normalize(torch.randn(3, WIDTH, generator=noise), dim=-1)
        for name in ("image", "text")
    }
    items = {
        name: F.normalize(torch.randn(ITEMS, WIDTH, generator=noise), dim=-1)
        for name in ("image", "text")
    }
    whole = torch.arange(ITEMS).expand(
        3, -1
    )  # the pool is the whole index, as in the earlier code
    features = Features(query, items, whole, torch.arange(ITEMS))
    picks = torch.tensor([[5, 0, 7], [1, 2, 3], [11, 4, 6]])
    with torch.no_grad():
        found = legacy.policy.logits(
            legacy.policy.prepare(features), picks.unsqueeze(1)
        )[:, 0]  # (3, steps, ITEMS)
        for step in range(3):
            before = picks[:, :step]
            wanted = earlier(
                query, {name: block[before] for name, block in items.items()}, before
            )[:, :ITEMS]
            seen = found[:, step] != -torch.inf
            assert seen.sum().item() == 3 * (ITEMS - step), "picks are not chosen twice"
            torch.testing.assert_close(
                found[:, step][seen], wanted[seen], atol=5.7e-6, rtol=0.0
            )


@pytest.mark.parametrize(("model", "adapter"), KINDS)
def test_a_file_over_ids_survives_import_and_export(
    tmp_path: Path, model: str, adapter: bool
) -> None:
    value = lightning(old_ids(model, adapter))
    if (
        model == "gpt2"
    ):  # older versions of transformers wrote the causal mask into the file
        mask = torch.ones(1024, 1024).tril().to(torch.uint8).view(1, 1, 1024, 1024)
        value["state_dict"]["lever_lm.lm_model.transformer.h.0.attn.bias"] = mask
        value["state_dict"]["lever_lm.lm_model.transformer.h.0.attn.masked_bias"] = (
            torch.tensor(-1e4)
        )
    found = import_file(save(value, tmp_path / "a.ckpt"), tmp_path / "in")
    assert f"id_{model}_faithful" in found.found
    policy, description = load_checkpoint(tmp_path / "in" / "checkpoints" / "a")
    write_legacy(policy, tmp_path / "b.ckpt", "v2", description["extra"]["legacy"])
    # the mask says nothing that the network does not know
    state = value["state_dict"]
    kept = {name: own for name, own in state.items() if ".attn.bias" not in name}
    kept = {name: own for name, own in kept.items() if "masked_bias" not in name}
    again = torch.load(tmp_path / "b.ckpt", weights_only=True)
    assert identical(again, {**value, "state_dict": kept})


def test_encoders_that_v0_trained_are_said_to_be_left_out(tmp_path: Path) -> None:
    value = lightning(old_ids("gpt2", False))
    value["state_dict"]["lever_lm.img_model.vision_model.post_layernorm.weight"] = (
        torch.ones(4)
    )
    legacy = read_legacy(save(value, tmp_path / "v0.ckpt"))
    assert legacy.policy.config.query_fields == ("image",), "only pictures were encoded"
    assert any(
        "1 tensors of its encoders were left out; v0 trained them" in note
        for note in legacy.notes
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda state: state.pop("lever_lm.lm_model.transformer.ln_f.weight"),
            r"missing: lm_model\.transformer\.ln_f\.weight",
        ),
        (
            lambda state: state.pop("lever_lm.lm_model.transformer.wte.weight"),
            "holds no embedding of ids",
        ),
        (
            lambda state: state.update({"lever_lm.lm_model.strange": torch.ones(2)}),
            "unexpected: lm_model.strange",
        ),
        (
            lambda state: state.update(
                {"lever_lm.lm_model.lm_head.weight": torch.ones(ITEMS + 3, WIDTH)}
            ),
            "differs from the embedding",
        ),
    ],
)
def test_what_does_not_fit_is_named(tmp_path: Path, change: Any, said: str) -> None:
    value = lightning(old_ids("gpt2", False))
    change(value["state_dict"])
    with pytest.raises(CheckpointError, match=said):
        read_legacy(save(value, tmp_path / "v0.ckpt"))


def test_only_the_earlier_form_is_written_for_the_earlier_code(tmp_path: Path) -> None:
    policy = build_policy(
        replace(ID_GPT2_FAITHFUL, hidden=16, stop="anywhere"),
        {"image": 8, "text": 8},
        items=5,
    )
    with pytest.raises(CheckpointError, match=r"may stop.*train id_gpt2_faithful"):
        write_legacy(policy, tmp_path / "a.ckpt", "v2")


def test_vectors_that_are_added_as_they_are_must_be_as_wide_as_the_selector() -> None:
    with pytest.raises(
        RecipeError,
        match=r"select\.hidden = 16 \(image 24, text 24\); use select.id_form",
    ):
        build_policy(
            replace(ID_GPT2_FAITHFUL, hidden=16, id_form="added"),
            {"image": 24, "text": 24},
            items=5,
        )


@pytest.fixture(scope="module")
def run(tiny_run: TinyRun, tmp_path_factory: pytest.TempPathFactory) -> TinyRun:
    folder = tmp_path_factory.mktemp("ids") / "run"
    shutil.copytree(tiny_run.folder, folder)
    return replace(tiny_run, folder=folder)


@pytest.fixture(scope="module")
def old_file(run: TinyRun, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GPT-2 over the ids of the world's demonstrations."""
    opened = load_run(run.folder, run.store)
    _, table = opened.pools(opened.demonstrations[:1])
    model = old_ids("gpt2", True, items=len(table), vectors=table.dims["image"])
    return save(lightning(model), tmp_path_factory.mktemp("old") / "v0.ckpt")


@pytest.mark.slow
def test_a_file_over_ids_is_evaluated_and_chooses(
    run: TinyRun, old_file: Path, tmp_path: Path, capsys: Any
) -> None:
    words = [
        "eval",
        str(run.folder),
        "--store",
        str(run.store),
        "--split",
        "dev",
        "--checkpoint",
        str(old_file),
    ]
    assert main([*words, "--json"]) == 0
    assert 0.0 <= json.loads(capsys.readouterr().out)["arms"]["learned"]["mean"] <= 1.0
    opened = load_run(run.folder)
    image = opened.task.image(opened.task.items("test")[0])
    assert image is not None
    image.save(tmp_path / "query.png")
    asked = [
        "select",
        str(run.folder),
        "--image",
        str(tmp_path / "query.png"),
        "--question",
        "what does it like",
    ]
    assert main([*asked, "-k", "2", "--json", "--checkpoint", str(old_file)]) == 0
    assert (
        len({demo["id"] for demo in json.loads(capsys.readouterr().out)["demos"]}) == 2
    )


@pytest.mark.slow
def test_training_goes_on_from_a_file_over_ids(
    run: TinyRun, old_file: Path, tmp_path: Path
) -> None:
    form = (
        "select.preset=id_gpt2_faithful",
        f"select.hidden={WIDTH}",
        "select.max_shots=8",
    )
    settings = [
        *(one for one in TINY if not one.startswith("select.")),
        *form,
        f"train.start={old_file}",
    ]
    recipe = load_recipe("world", [*settings, "sft.epochs=1"])
    opened = open_run(
        recipe, find_recipe("world"), tmp_path / "run", seed=0, store_path=run.store
    )
    train_run(opened)
    began, ended = (
        tensors_of(load_checkpoint(tmp_path / "run" / "checkpoints" / n)[0])
        for n in ("start", "sft-epoch001")
    )
    given = tensors_of(read_given(str(old_file)))
    assert all(torch.equal(began[name], given[name]) for name in given)
    assert any(not torch.equal(began[name], ended[name]) for name in began), (
        "an epoch moved it"
    )


def lora_file(tmp_path: Path, rank: int = 2) -> tuple[Path, dict[str, Any]]:
    from transformers import CLIPModel

    network = CLIPModel.from_pretrained(save_dual_model(tmp_path / "weights", "clip"))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        own = OldSelector(width=network.config.projection_dim).state_dict()
    state = {PREFIX + name: tensor for name, tensor in own.items()} | lora_state(
        network, rank
    )
    value = {"epoch": 0, "hyper_parameters": {}, "state_dict": state}
    return save(value, tmp_path / "v2_lora.ckpt"), value


@pytest.mark.slow
def test_adapters_of_v2_lora_are_read_and_written_back(tmp_path: Path) -> None:
    path, value = lora_file(tmp_path)
    found = import_file(path, tmp_path / "in")
    assert any(
        "adapters (LoRA) of rank 2" in note and "set to 4" in note
        for note in found.notes
    )
    policy, description = load_checkpoint(tmp_path / "in" / "checkpoints" / "v2_lora")
    write_legacy(policy, tmp_path / "b.ckpt", "v2", description["extra"]["legacy"])
    kept = {
        name: tensor
        for name, tensor in value["state_dict"].items()
        if ".base_layer." not in name
    }
    assert identical(
        torch.load(tmp_path / "b.ckpt", weights_only=True),
        {**value, "state_dict": kept},
    )


@pytest.mark.slow
def test_imported_adapters_change_clip_by_the_formula_of_lora(tmp_path: Path) -> None:
    """y = W x + (alpha / rank) B A x, with alpha = 2 rank as the configuration had it."""
    from transformers import CLIPModel

    path, value = lora_file(tmp_path)
    adapters = read_legacy(path).policy.adapters
    assert adapters is not None
    network = CLIPModel.from_pretrained(tmp_path / "weights").eval()
    merged = CLIPModel.from_pretrained(tmp_path / "weights").eval()
    start = "lever_lm.{}.base_model.model.{}.lora_{}.default.weight"
    for name, part in merged.named_modules():
        if name in adapters.shapes:
            encoder = "sen_model" if name.startswith("text_model.") else "img_model"
            a, b = (
                value["state_dict"][start.format(encoder, name, side)] for side in "AB"
            )
            part.weight.data += 2.0 * b @ a
    picture = torch.randn(
        2,
        3,
        *[network.config.vision_config.image_size] * 2,
        generator=torch.Generator().manual_seed(0),
    )
    with torch.no_grad(), adapters.eval().active(network, "whatever it is"):
        seen = network.get_image_features(pixel_values=picture).pooler_output
        plain = merged.get_image_features(pixel_values=picture).pooler_output
    torch.testing.assert_close(seen, plain, atol=1e-5, rtol=1e-5)
    assert len(adapters.shapes) >= 8


@pytest.mark.slow
def test_adapters_of_another_network_are_refused(tmp_path: Path) -> None:
    path, _ = lora_file(tmp_path)
    adapters = read_legacy(path).policy.adapters
    assert adapters is not None
    with (
        pytest.raises(
            CheckpointError, match="projections that the embedder does not have"
        ),
        adapters.active(torch.nn.Linear(2, 2), "x"),
    ):
        pass
