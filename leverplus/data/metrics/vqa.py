"""Official VQA accuracy of one answer against its annotators' answers, and the official normalisation of an answer.

Source: the evaluator of the VQA challenge (GT-Vision-Lab/VQA, `vqaEval.py`), whose quirks are kept because published
numbers depend on them; each is named where it occurs.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from leverplus.data.metrics.base import require_references

ARTICLES = frozenset({"a", "an", "the"})

NUMBER_WORDS = {
    "none": "0",
    "zero": "0",
    "one": "1",
    "two": "2",
    "three": "3",
    "four": "4",
    "five": "5",
    "six": "6",
    "seven": "7",
    "eight": "8",
    "nine": "9",
    "ten": "10",
}
PUNCTUATION = ';/[]"{}()=+\\_-><@`,?!'

# A form without its apostrophe, then the form that replaces it. The evaluator also lists four forms with a capital I;
# they can never match, because the text is lower-cased first. There "somebody'd" loses its apostrophe, so it does here.
_CONTRACTION_PAIRS = """
aint ain't arent aren't cant can't couldve could've couldnt couldn't couldn'tve couldn't've couldnt've couldn't've
didnt didn't doesnt doesn't dont don't hadnt hadn't hadnt've hadn't've hadn'tve hadn't've hasnt hasn't havent haven't
hed he'd hed've he'd've he'dve he'd've hes he's howd how'd howll how'll hows how's isnt isn't itd it'd itd've it'd've
it'dve it'd've itll it'll let's let's maam ma'am mightnt mightn't mightnt've mightn't've mightn'tve mightn't've
mightve might've mustnt mustn't mustve must've neednt needn't notve not've oclock o'clock oughtnt oughtn't
ow's'at 'ow's'at 'ows'at 'ow's'at 'ow'sat 'ow's'at shant shan't shed've she'd've she'dve she'd've she's she's
shouldve should've shouldnt shouldn't shouldnt've shouldn't've shouldn'tve shouldn't've somebody'd somebodyd
somebodyd've somebody'd've somebody'dve somebody'd've somebodyll somebody'll somebodys somebody's someoned someone'd
someoned've someone'd've someone'dve someone'd've someonell someone'll someones someone's somethingd something'd
somethingd've something'd've something'dve something'd've somethingll something'll thats that's thered there'd
thered've there'd've there'dve there'd've therere there're theres there's theyd they'd theyd've they'd've
they'dve they'd've theyll they'll theyre they're theyve they've twas 'twas wasnt wasn't wed've we'd've we'dve we'd've
weve we've werent weren't whatll what'll whatre what're whats what's whatve what've whens when's whered where'd
wheres where's whereve where've whod who'd whod've who'd've who'dve who'd've wholl who'll whos who's whove who've
whyll why'll whyre why're whys why's wont won't wouldve would've wouldnt wouldn't wouldnt've wouldn't've
wouldn'tve wouldn't've yall y'all yall'll y'all'll y'allll y'all'll yall'd've y'all'd've y'alld've y'all'd've
y'all'dve y'all'd've youd you'd youd've you'd've you'dve you'd've youll you'll youre you're youve you've
"""
_FORMS = _CONTRACTION_PAIRS.split()
CONTRACTIONS = dict(zip(_FORMS[::2], _FORMS[1::2], strict=True))

_COMMA_IN_NUMBER = re.compile(r"\d,\d")
# The evaluator means to keep a point between digits; its look-behind is mistyped, so only the digit after it counts.
_LOOSE_PERIOD = re.compile(r"\.(?!\d)")
# It passes a regex flag where the number of replacements belongs: at most 32 periods are removed.
_PERIODS_REMOVED = 32


def _plain_spaces(text: str) -> str:
    return text.replace("\n", " ").replace("\t", " ").strip()


def _strip_punctuation(text: str) -> str:
    """A mark that touches a space anywhere in the text vanishes everywhere in it; any other becomes a space."""
    number_with_comma = _COMMA_IN_NUMBER.search(text) is not None
    out = text
    for mark in PUNCTUATION:
        if mark in out:
            touches_space = mark + " " in text or " " + mark in text
            instead = " "
            if touches_space or number_with_comma:
                instead = ""
            out = out.replace(mark, instead)
    return _LOOSE_PERIOD.sub("", out, count=_PERIODS_REMOVED)


@lru_cache(maxsize=1 << 17)
def normalise_answer(text: str) -> str:
    """An answer as the official evaluator compares it: lower case, no punctuation or articles, digits for numbers."""
    words = []
    for word in _strip_punctuation(_plain_spaces(text)).lower().split():
        digits = NUMBER_WORDS.get(word, word)
        if digits not in ARTICLES:
            words.append(CONTRACTIONS.get(digits, digits))
    return " ".join(words)


@lru_cache(maxsize=1 << 16)
def _comparable(references: tuple[str, ...]) -> tuple[bool, tuple[str, ...]]:
    """Whether answers are normalised for this question, and its references as they are compared.

    The evaluator normalises only where the annotators disagree; where all gave the same string, the strings must match.
    """
    plain = tuple(map(_plain_spaces, references))
    if len(set(plain)) > 1:
        return True, tuple(map(normalise_answer, plain))
    return False, plain


def vqa_accuracy(answer: str, references: Sequence[str]) -> float:
    """Official VQA accuracy of one answer, in [0, 1]: mean over annotators of min(1, matches among the others / 3).

    `references` are the annotators' answers, repeated as often as given: ten in VQA and OK-VQA, any number here. Fewer
    than four annotators cannot give a full score, and one alone always gives 0.0, because no other is left to agree
    with; use `exact_match` for tasks with a single reference.
    """
    require_references(references, "VQA accuracy")
    normalise, compared = _comparable(tuple(references))
    given = _plain_spaces(answer)
    if normalise:
        given = normalise_answer(answer)
    matches = compared.count(given)
    if matches == 0:
        return 0.0
    # Summed annotator by annotator, in order, so that the floating-point result is the evaluator's to the last digit.
    return sum(
        [min(1, (matches - (reference == given)) / 3) for reference in compared]
    ) / len(compared)
