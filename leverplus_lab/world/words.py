"""The language of the world: six relations, four paraphrases each, 24 things with two names, and the token table.

Every thing has an American and a British name. Which one an annotator prefers depends on where a picture was labelled,
and the picture's background hints at that. A demonstration labelled elsewhere tempts the model into the wrong name:
that is how demonstrations can harm here, as copied answer formats do with real models.
"""

from __future__ import annotations

import re

SHAPES = ("circle", "ring", "square", "triangle", "star", "cross", "crescent")
COLOURS = ("red", "orange", "yellow", "green", "cyan", "blue", "purple")
BACKGROUNDS = ("light", "dotted", "faded", "dark", "striped", "checkered")
DIALECTS = ("american", "british")
"""Backgrounds 0-2 are typical of pictures labelled in the first dialect, 3-5 of the second."""

THINGS = (
    ("cookie", "biscuit"),
    ("truck", "lorry"),
    ("fall", "autumn"),
    ("apartment", "flat"),
    ("candy", "sweets"),
    ("elevator", "lift"),
    ("faucet", "tap"),
    ("flashlight", "torch"),
    ("garbage", "rubbish"),
    ("movie", "film"),
    ("pants", "trousers"),
    ("sweater", "jumper"),
    ("vacation", "holiday"),
    ("soccer", "football"),
    ("zucchini", "courgette"),
    ("eggplant", "aubergine"),
    ("sneakers", "trainers"),
    ("stroller", "pram"),
    ("subway", "underground"),
    ("mailbox", "postbox"),
    ("sidewalk", "pavement"),
    ("gasoline", "petrol"),
    ("diaper", "nappy"),
    ("closet", "wardrobe"),
)

RELATIONS = ("likes", "fears", "carries", "hides", "trades", "dreams")
DEPENDS_ON = ("shape", "shape", "colour", "colour", "both", "both")
"""What a relation's answer depends on; for "both" the answer is the colour's thing, then the shape's thing."""

PARAPHRASES = (
    (
        "what does it like",
        "which thing pleases it",
        "what is its favourite",
        "it most enjoys what",
    ),
    (
        "what does it fear",
        "which thing scares it",
        "what is it avoiding",
        "it runs from what",
    ),
    (
        "what does it carry",
        "which load burdens it",
        "what is its baggage",
        "it bears along what",
    ),
    (
        "what does it hide",
        "which thing stays secret",
        "what is it concealing",
        "it keeps away what",
    ),
    (
        "what does it trade",
        "which pair it sells",
        "what is its bargain",
        "it barters with what",
    ),
    (
        "what does it dream",
        "which pair haunts it",
        "what is it imagining",
        "it sleeps seeing what",
    ),
)

QUESTION_WORDS = 4
ANSWER_WORDS = 2

PAD, UNKNOWN, ASK, END = 0, 1, 2, 3
"""Padding, a word nobody taught, the mark after a question, the end of a one-word answer."""

ANSWER_START = 4
"""Token ids 4..51 are the 48 names: 4 + 2 * thing + dialect."""

_NAMES = tuple(name for pair in THINGS for name in pair)
_QUESTION_WORDS = " ".join(map(" ".join, PARAPHRASES)).split()
# each word once, in this order: token ids are rows of the shipped embedding tables
_OTHER = tuple(dict.fromkeys((*_QUESTION_WORDS, *SHAPES, *COLOURS, *BACKGROUNDS)))
VOCABULARY = ("<pad>", "<unknown>", "<ask>", "<end>", *_NAMES, *_OTHER)
TOKEN = {word: index for index, word in enumerate(VOCABULARY)}
ANSWER_END = ANSWER_START + len(_NAMES)


def name_token(thing: int, dialect: int) -> int:
    """The token of a thing's name in a dialect."""
    return ANSWER_START + 2 * thing + dialect


def question_tokens(text: str) -> list[int]:
    """Exactly four token ids of a question; unknown words become `<unknown>`, longer questions are cut."""
    words = re.findall(r"[a-z]+", text.lower())[:QUESTION_WORDS]
    ids = [TOKEN.get(word, UNKNOWN) for word in words]
    return ids + [PAD] * (QUESTION_WORDS - len(ids))


def answer_tokens(text: str) -> list[int]:
    """Exactly two token ids of an answer, `<end>` after a single word; words that are no names become `<unknown>`."""
    ids = []
    for word in text.lower().split()[:ANSWER_WORDS]:
        token = TOKEN.get(word, UNKNOWN)
        is_name = ANSWER_START <= token < ANSWER_END
        ids.append(token if is_name else UNKNOWN)
    if not ids:  # an empty answer is one unknown word
        ids = [UNKNOWN]
    return ids + [END] * (ANSWER_WORDS - len(ids))


def answer_text(tokens: list[int]) -> str:
    """The words of an answer, up to `<end>`."""
    words = []
    for token in tokens:
        if token == END:
            break
        words.append(VOCABULARY[token])
    return " ".join(words)
