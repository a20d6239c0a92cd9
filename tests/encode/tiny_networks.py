"""Tiny networks with random weights in the layout of real ones, built without any download."""

from __future__ import annotations

import json
from pathlib import Path

import torch

WORDS = [
    "what",
    "is",
    "the",
    "a",
    "of",
    "in",
    "on",
    "color",
    "animal",
    "sport",
    "dog",
    "cat",
    "man",
    "woman",
    "ball",
]
WORDS += ["kite", "red", "blue", "who", "where", "when", "how", "many"]


def save_sentence_model(
    folder: Path, *, pooling: str = "pooling_mode_mean_tokens", seed: int = 0
) -> Path:
    """A two-layer BERT in the sentence-transformers layout."""
    from transformers import BertConfig, BertModel, BertTokenizerFast

    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        *WORDS,
        *"abcdefghijklmnopqrstuvwxyz?",
    ]
    vocabulary += [f"##{letter}" for letter in "abcdefghijklmnopqrstuvwxyz"]
    (folder / "vocab.txt").write_text("\n".join(dict.fromkeys(vocabulary)) + "\n")
    BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(folder)
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=64,
        initializer_range=0.4,
    )
    BertModel(config).save_pretrained(folder)
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling" / "config.json").write_text(
        json.dumps({"word_embedding_dimension": 32, pooling: True})
    )
    (folder / "sentence_bert_config.json").write_text(
        json.dumps({"max_seq_length": 16})
    )
    kinds = ("Transformer", "Pooling", "Normalize")
    modules = [
        {
            "idx": n,
            "name": str(n),
            "path": "" if n == 0 else f"{n}_{kind}",
            "type": f"sentence_transformers.models.{kind}",
        }
        for n, kind in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    return folder


def save_tokenizer(folder: Path, longest: int) -> int:
    """Whole words and letters, wrapped as CLIP wraps them; returns how many there are."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    names = [
        "<unk>",
        *dict.fromkeys([*WORDS, *"abcdefghijklmnopqrstuvwxyz?"]),
        "<start>",
        "<end>",
    ]
    vocabulary = {name: place for place, name in enumerate(names)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<start> $A <end>",
        special_tokens=[
            ("<start>", vocabulary["<start>"]),
            ("<end>", vocabulary["<end>"]),
        ],
    )
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="<unk>",
        bos_token="<start>",
        eos_token="<end>",
        pad_token="<end>",
    )
    wrapped.model_max_length = longest
    wrapped.save_pretrained(folder)
    return len(names)


def save_dual_model(folder: Path, kind: str, *, seed: int = 0) -> Path:
    """A two-layer CLIP or SigLIP for pictures of 32 x 32, vectors of 24 or 32 numbers."""
    import transformers

    size = save_tokenizer(folder, 16)
    sides = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
    }
    text = {
        **sides,
        "vocab_size": size,
        "max_position_embeddings": 16,
        "initializer_range": 0.5,
    }
    text |= {
        "bos_token_id": size - 2,
        "eos_token_id": size - 1,
        "pad_token_id": size - 1,
    }
    vision = {**sides, "image_size": 32, "patch_size": 8, "initializer_range": 0.5}
    torch.manual_seed(seed)
    if kind == "clip":
        parts = {
            "text_config": {**text, "projection_dim": 24},
            "vision_config": {**vision, "projection_dim": 24},
        }
        config = transformers.CLIPConfig(
            **parts, projection_dim=24, initializer_factor=4.0
        )
        transformers.CLIPModel(config).save_pretrained(folder)
        transformers.CLIPImageProcessorPil(
            size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32}
        ).save_pretrained(folder)
    else:
        config = transformers.SiglipConfig(
            text_config={**text, "projection_size": 32}, vision_config=vision
        )
        transformers.SiglipModel(config).save_pretrained(folder)
        transformers.SiglipImageProcessorPil(
            size={"height": 32, "width": 32}
        ).save_pretrained(folder)
    return folder
