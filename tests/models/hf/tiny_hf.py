"""Tiny models with random weights in the layout of the hub, tokenizer and chat template included, built in a second."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tiny_models as tiny
import torch
from PIL import Image
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from leverplus.data.tasks.answers import AnswerRules
from leverplus.data.types import Item, ItemId
from leverplus.models.hf.load import leave_out_videos

COLOURS = ["red", "green", "blue", "grey", "white", "black", "orange", "pink"]
CORPUS = [
    "Question: What colour is this?\nAnswer: red\n",
    "Question: How many dogs are there in the picture?\nAnswer: two\n",
    "user assistant system You answer with one word. Describe what the picture shows to the reader",
    *COLOURS,
]
SPECIALS = [
    *tiny.SPECIALS,
    "<image>",
    "<fake_token_around_image>",
    "<global-img>",
    "<end_of_utterance>",
    *(f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)),
]
CHAT = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{% if m['content'] is string %}{{ m['content'] }}{% else %}"
    "{% for c in m['content'] %}{% if c['type'] == 'image' %}PICTURE{% else %}{{ c['text'] }}{% endif %}{% endfor %}"
    "{% endif %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
WITHOUT_END = (
    "{% for m in messages %}{{ m['role'].upper() }}: {% for c in m['content'] %}{% if c['type'] == 'image' %}PICTURE\n"
    "{% else %}{{ c['text'] }}{% endif %}{% endfor %} {% endfor %}{% if add_generation_prompt %}ASSISTANT:{% endif %}"
)


def tokenizer(chat: str | None = CHAT) -> PreTrainedTokenizerFast:
    """A byte-level BPE of about 400 tokens, as GPT-2 has it."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=SPECIALS,
        initial_alphabet=alphabet,
        show_progress=False,
    )
    bpe.train_from_iterator(CORPUS * 20, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token="<|endoftext|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=SPECIALS[1:],
    )
    fast.chat_template = chat
    return fast


def text_settings(**more: Any) -> dict[str, Any]:
    return {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 512,
        "max_position_embeddings": 4096,
        "bos_token_id": None,
        "eos_token_id": 0,
        "pad_token_id": 0,
        **more,
    }


def save(model: Any, processor: Any, folder: Path) -> Path:
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


def spread(model: Any) -> Any:
    """Larger random weights than a fresh model has, so that what differs in a prompt differs in its answer."""
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=0.2)
    return model.eval()


def llama(folder: Path, chat: str | None = CHAT) -> Path:
    from transformers import LlamaConfig, LlamaForCausalLM

    return save(
        spread(LlamaForCausalLM(LlamaConfig(**text_settings()))),
        tokenizer(chat),
        folder,
    )


def gemma3(folder: Path) -> Path:
    """Layers that look back 24 tokens only beside one that looks back to the start; capped logits."""
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    kinds = ["sliding_attention", "sliding_attention", "full_attention"]
    settings = text_settings(
        head_dim=8, sliding_window=24, layer_types=kinds, final_logit_softcapping=5.0
    )
    return save(
        spread(Gemma3ForCausalLM(Gemma3TextConfig(**settings))), tokenizer(), folder
    )


def mistral(folder: Path) -> Path:
    """Every layer looks back 24 tokens only."""
    from transformers import MistralConfig, MistralForCausalLM

    settings = text_settings(head_dim=8, sliding_window=24)
    return save(
        spread(MistralForCausalLM(MistralConfig(**settings))), tokenizer(), folder
    )


def gemma2(folder: Path) -> Path:
    """Capped attention, which torch's own attention function does not offer."""
    from transformers import Gemma2Config, Gemma2ForCausalLM

    settings = text_settings(
        head_dim=8,
        sliding_window=24,
        attn_logit_softcapping=2.0,
        query_pre_attn_scalar=8,
    )
    model = spread(
        Gemma2ForCausalLM(Gemma2Config(**settings, attn_implementation="eager"))
    )
    return save(model, tokenizer(), folder)


def falcon(folder: Path) -> Path:
    """It looks up by name how to attend, in a way of its own: a name it does not know is "eager" to it."""
    from transformers import FalconConfig, FalconForCausalLM

    return save(
        spread(FalconForCausalLM(FalconConfig(**text_settings()))), tokenizer(), folder
    )


def qwen2_5_vl(folder: Path) -> Path:
    from transformers import (
        Qwen2_5_VLConfig,
        Qwen2_5_VLForConditionalGeneration,
        Qwen2_5_VLProcessor,
    )

    tok = tokenizer()
    ids = special_ids(tok)
    vision = {
        "depth": 2,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_heads": 4,
        "out_hidden_size": 32,
        "patch_size": 14,
        "window_size": 56,
        "fullatt_block_indexes": [1],
    }
    rope = {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 10000.0}
    config = Qwen2_5_VLConfig(
        text_config=text_settings(rope_parameters=rope), vision_config=vision, **ids
    )
    return save(
        spread(Qwen2_5_VLForConditionalGeneration(config)),
        qwen_processor(Qwen2_5_VLProcessor, tok),
        folder,
    )


def qwen3_vl(folder: Path) -> Path:
    from transformers import (
        Qwen3VLConfig,
        Qwen3VLForConditionalGeneration,
        Qwen3VLProcessor,
    )

    tok = tokenizer()
    ids = special_ids(tok)
    vision = {
        "depth": 3,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_heads": 4,
        "out_hidden_size": 32,
        "patch_size": 14,
        "deepstack_visual_indexes": [0, 1],
        "num_position_embeddings": 64,
    }
    rope = {
        "rope_type": "default",
        "mrope_section": [2, 1, 1],
        "mrope_interleaved": True,
        "rope_theta": 10000.0,
    }
    text = text_settings(head_dim=8, rope_parameters=rope)
    config = Qwen3VLConfig(text_config=text, vision_config=vision, **ids)
    return save(
        spread(Qwen3VLForConditionalGeneration(config)),
        qwen_processor(Qwen3VLProcessor, tok),
        folder,
    )


def special_ids(tok: PreTrainedTokenizerFast) -> dict[str, int]:
    names = {
        "image_token_id": "<|image_pad|>",
        "video_token_id": "<|video_pad|>",
        "vision_start_token_id": "<|vision_start|>",
        "vision_end_token_id": "<|vision_end|>",
    }
    return {key: tok.convert_tokens_to_ids(name) for key, name in names.items()}


def qwen_processor(cls: Any, tok: PreTrainedTokenizerFast) -> Any:
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import (
        Qwen2VLImageProcessorPil,
    )

    images = Qwen2VLImageProcessorPil(
        patch_size=14,
        merge_size=2,
        size={"shortest_edge": 28 * 28, "longest_edge": 28 * 28 * 16},
    )
    chat = CHAT.replace("PICTURE", "<|vision_start|><|image_pad|><|vision_end|>")
    leave_out_videos()
    return cls(image_processor=images, tokenizer=tok, chat_template=chat)


def idefics3(folder: Path, *, splitting: bool = True) -> Path:
    from transformers import (
        Idefics3Config,
        Idefics3ForConditionalGeneration,
        Idefics3Processor,
    )
    from transformers.models.idefics3.image_processing_pil_idefics3 import (
        Idefics3ImageProcessorPil,
    )

    tok = tokenizer()
    side = 56
    vision = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "image_size": side,
        "patch_size": 14,
    }
    text = {"model_type": "llama", **text_settings()}
    config = Idefics3Config(
        text_config=text,
        vision_config=vision,
        scale_factor=2,
        image_token_id=tok.convert_tokens_to_ids("<image>"),
    )
    images = Idefics3ImageProcessorPil(
        size={"longest_edge": side * 2},
        max_image_size={"longest_edge": side},
        do_image_splitting=splitting,
    )
    chat = CHAT.replace("PICTURE", "<image>").replace(
        "<|im_end|>", "<end_of_utterance>"
    )
    processor = Idefics3Processor(images, tok, image_seq_len=4, chat_template=chat)
    return save(spread(Idefics3ForConditionalGeneration(config)), processor, folder)


def llava(folder: Path) -> Path:
    from transformers import (
        CLIPVisionConfig,
        LlavaConfig,
        LlavaForConditionalGeneration,
        LlavaProcessor,
    )
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

    tok = tokenizer()
    vision = CLIPVisionConfig(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        image_size=56,
        patch_size=14,
    )
    config = LlavaConfig(
        text_config={"model_type": "llama", **text_settings()},
        vision_config=vision,
        image_token_id=tok.convert_tokens_to_ids("<image>"),
        image_seq_length=16,
    )
    images = CLIPImageProcessorPil(
        size={"shortest_edge": 56}, crop_size={"height": 56, "width": 56}
    )
    processor = LlavaProcessor(
        images,
        tok,
        patch_size=14,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=WITHOUT_END.replace("PICTURE", "<image>"),
    )
    return save(spread(LlavaForConditionalGeneration(config)), processor, folder)


VISION = {
    "qwen2_5_vl": qwen2_5_vl,
    "qwen3_vl": qwen3_vl,
    "idefics3": idefics3,
    "llava": llava,
}
TEXT = {
    "llama": llama,
    "gemma3": gemma3,
    "mistral": mistral,
    "gemma2": gemma2,
    "falcon": falcon,
}


class ColourTask:
    """Plain pictures of two sizes, each with a question and a colour; without `pictures`, questions only."""

    name, version, answers = "colours", "1", AnswerRules("exact_match", "plain")

    def __init__(self, *, pictures: bool = True) -> None:
        self._items: dict[str, list[Item]] = {}
        for split, count in (("train", 12), ("dev", 12), ("test", 4)):
            self._items[split] = [
                self._item(split, number, pictures) for number in range(count)
            ]

    def _item(self, split: str, number: int, pictures: bool) -> Item:
        words = "in the picture " * (number % 3)
        name = f"{split}{number}"
        return Item(
            ItemId(name),
            f"What colour is {words}thing {number}?",
            (COLOURS[number % len(COLOURS)],),
            split,
            image=name if pictures else None,
            image_id=name,
        )

    def items(self, split: str) -> list[Item]:
        return self._items[split]

    def item(self, item_id: ItemId) -> Item:
        return next(
            item
            for items in self._items.values()
            for item in items
            if item.id == item_id
        )

    def image(self, item: Item) -> Image.Image | None:
        if item.image is None:
            return None
        number = sum(item.image.encode()) + int(
            "".join(letter for letter in item.image if letter.isdigit())
        )
        generator = torch.Generator().manual_seed(number)
        size = (56, 84) if number % 2 else (84, 56)
        pixels = (torch.rand(*size, 3, generator=generator) * 255).to(torch.uint8)
        return Image.fromarray(pixels.numpy())

    def image_digest(self, item: Item) -> str:
        return item.image or ""
