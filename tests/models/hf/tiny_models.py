"""A tiny Qwen2.5-VL with random weights, in the layout of the hub: it proves that pictures go through, not that any
answer is right. Recipes that name its folder say `model.untrained = true`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

SPECIALS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
CHAT = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{% if m['content'] is string %}{{ m['content'] }}{% else %}"
    "{% for c in m['content'] %}{% if c['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}"
    "{{ c['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
WIDTH, SPREAD = 32, 0.2
"""Weights are spread wider than in a fresh model, so that what differs in a prompt differs in its answer."""


def qwen2_5_vl(folder: Path) -> None:
    """Write model, tokenizer (one token a byte) and processor into a folder; the same bytes every time."""
    import torch
    import transformers
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import (
        Qwen2VLImageProcessorPil,
    )

    from leverplus.models.hf.load import leave_out_videos

    library: Any = transformers
    tokenizer = byte_tokenizer()
    config = library.Qwen2_5_VLConfig(
        text_config=_text(),
        vision_config=_vision(),
        **_special_ids(tokenizer),
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = library.Qwen2_5_VLForConditionalGeneration(config)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim > 1:
                    parameter.normal_(std=SPREAD)
    size = {"shortest_edge": 28 * 28, "longest_edge": 28 * 28 * 16}
    pictures = Qwen2VLImageProcessorPil(
        patch_size=14,
        merge_size=2,
        size=size,
    )
    leave_out_videos()
    processor = library.Qwen2_5_VLProcessor(
        image_processor=pictures,
        tokenizer=tokenizer,
        chat_template=CHAT,
    )
    model.save_pretrained(folder)
    processor.save_pretrained(folder)


def byte_tokenizer() -> Any:
    """One token a byte, then the special ones."""
    import transformers
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    bytes_only = Tokenizer(
        models.BPE(
            vocab={letter: place for place, letter in enumerate(letters)}, merges=[]
        )
    )
    bytes_only.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytes_only.decoder = decoders.ByteLevel()
    library: Any = transformers
    tokenizer = library.PreTrainedTokenizerFast(
        tokenizer_object=bytes_only,
        eos_token=SPECIALS[0],
        pad_token=SPECIALS[0],
        additional_special_tokens=list(SPECIALS[1:]),
    )
    tokenizer.chat_template = CHAT
    return tokenizer


def _text() -> dict[str, Any]:
    return {
        "hidden_size": WIDTH,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 256 + len(SPECIALS),
        "max_position_embeddings": 8192,
        "bos_token_id": None,
        "eos_token_id": 256,
        "pad_token_id": 256,
        "rope_parameters": {
            "rope_type": "default",
            "mrope_section": [1, 1, 2],
            "rope_theta": 10000.0,
        },
    }


def _vision() -> dict[str, Any]:
    return {
        "depth": 2,
        "hidden_size": WIDTH,
        "intermediate_size": 48,
        "num_heads": 4,
        "out_hidden_size": WIDTH,
        "patch_size": 14,
        "window_size": 56,
        "fullatt_block_indexes": [1],
    }


def _special_ids(tokenizer: Any) -> dict[str, int]:
    names = {"image": "<|image_pad|>", "video": "<|video_pad|>"}
    names |= {"vision_start": "<|vision_start|>", "vision_end": "<|vision_end|>"}
    return {
        f"{key}_token_id": tokenizer.convert_tokens_to_ids(name)
        for key, name in names.items()
    }
