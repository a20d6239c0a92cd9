"""Lines that trainings print: dicts (Transformers, TRL, OpenRLHF), `step:1 - a:b` (verl), tables (SB3), `a b`."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable
from itertools import pairwise

from leverplus_doctor.logs.names import PLACES, LogLine, Meaning, meaning

Known = Callable[[str], Meaning | None]
"""What a printed name means, by the table or because the user said so."""
Numbers = dict[str, float | None]
_BY_USER = ("", 0)
"""The meaning of a name that the user says is a metric."""

# 12, 1,234, 0.5, .5, 3., 1e-5, nan, inf
_NUMBER = r"[+-]?(?:\d+(?:,\d{3})+|\d*\.\d+|\d+\.?)(?:[eE][+-]?\d+)?|[+-]?(?:nan|inf(?:inity)?)"
# what may stand before a number: loss=tensor(0.4), return=[13.], np.float64(0.4)
_WRAPPED = r"(?:tensor\(|np\.\w+\(|\[)?"
# {'loss': 0.4, 'kl': tensor(0.01)}: braces without braces inside, at least one quoted name
_DICT = re.compile(r"\{[^{}]*['\"][^{}]*\}")
_DICT_ITEM = re.compile(
    rf"['\"]([^'\"]+)['\"]\s*:\s*(?:tensor\(|np\.float\d+\()?['\"]?({_NUMBER})(?![\w.])",
    re.I,
)
# the same over several lines, as pprint lays it out
_SPREAD_DICT = re.compile(r"\{\s*['\"][^{}\n]*\n[^{}]{0,8000}\}")
# verl: step:12 - actor/kl_loss:0.01 - critic/score/mean:0.4
_VERL = re.compile(r"\bstep:(\d+) - (\S.*)")
# Stable-Baselines3: |    ep_rew_mean      | 21.3 |, under a title without number: | rollout/ | |
_ROW = re.compile(rf"^\s*\|\s(\s*)([^|]*?)\s*\|\s*({_NUMBER})?\s*\|\s*$", re.I)
_CELL = re.compile(rf"({_NUMBER})\s*(%?)", re.I)
# the line of dashes that ends such a table
_RULE = re.compile(r"^\s*(?:-{5,}|[└╰┗╚][─━═┴┻╩]+[┘╯┛╝])\s*$")
# step 12, Epoch: 3, global_step=400, and the same in Chinese
_PLACE = re.compile(
    r"(?P<name>(?:global[_ ]?)?steps?|iter(?:ation)?s?|updates?|epochs?|步数?|轮次|迭代)\s*[\[:：=# ]\s*(?P<number>\d+)"
    r"|第\s*(?P<count>\d+)\s*(?:个|次)?\s*(?P<kind>步|轮|次迭代|epoch|step)",
    re.IGNORECASE,
)
# kl=0.04, reward: 0.3, accuracy 45 %: a name, a sign or a blank, a number that no letter follows
_PAIR = re.compile(
    rf"([A-Za-z\u4e00-\u9fff][A-Za-z\u4e00-\u9fff/_.\- ]*?(?:@\d+)?)\s*(?:[=:：≈]\s*{_WRAPPED}|为|是|\s)\s*"
    rf"({_NUMBER})\s*(%?)(?!\w|\.\w)",
    re.IGNORECASE,
)
# words between a name and its number in a sentence: "the KL was 0.01", "reward fell to 0.2"
_BETWEEN = re.compile(
    r"was|is|were|are|at|of|to|reached|around|about|had|stood|fell|rose|dropped|went|climbed",
    re.I,
)
# a line of names and numbers and nothing else, which goes on with what the line above began: reward: 0.4 | length: 12
_GOES_ON = re.compile(
    rf"\W*(?:[^|;:=\d]+[:=]\s*{_WRAPPED}(?:{_NUMBER})\s*[%\])]?\s*(?:[|,;]\s*|$))+",
    re.I,
)
# words before "loss" that leave it the loss of the training
_FILLS = re.compile(
    r"the|its|a|and|with|while|of|mean|avg|average|current|final|step|batch|epoch|running|smoothed|\W+|.*[,;|]",
    re.I,
)
# what may stand before the number of an epoch that has a line of its own
_BEFORE = re.compile(
    r"[\W\d_]*(?:(?:info|debug|root|main|start(?:ed|ing)?|beg[iu]n(?:ning)?|running|learning|training|train)\b[\W\d_]*)*",
    re.I,
)
# a sentence in Chinese names its metric after these: 第 100 步时熵为 0.2
_AFTER = re.compile(r"[时的后处]")
_RESUMED = re.compile(
    r"\bresum(?:e|ed|ing)\b|\bcontinu(?:e|ed|ing) (?:training|from)\b|restored? from checkpoint"
    r"|恢复训练|断点续训|继续训练",
    re.IGNORECASE,
)
# a setting that is printed: resume_from_checkpoint=None
_NOT_RESUMED = re.compile(
    r"resume[_ ](?:from[_ ]checkpoint|mode|training)?\s*[=:]\s*(?:none|false|disable|null)",
    re.I,
)


def read_console(text: str, named: Collection[str] = ()) -> list[LogLine]:
    """The metric lines of what a training printed, in order; none where there are none.

    `named` are names that the user says are metrics.

    >>> read_console("step 1: loss 0.5")[0].values
    {'step': 1.0, 'loss': 0.5}
    """

    def known(name: str) -> Meaning | None:
        if name in named:
            return _BY_USER
        return meaning(name)

    lines: list[LogLine] = []
    table: Numbers = {}  # of one step, not complete yet (Stable-Baselines3)
    section = ""
    resumed = False
    header: list[str] = []  # of a table with a row per step, as long as its rows go on
    announced: Numbers = {}  # the epoch of a line of its own (Keras, plain PyTorch)
    for row in _SPREAD_DICT.sub(_on_one_line, text).splitlines():
        columns = _columns(row)
        if len(columns) == len(header) + 1 and columns[0].isdigit():
            # a data frame prints the number of the row, under no name
            columns = columns[1:]
        cells = _ROW.match(re.sub("[│┃║]", "|", row))
        if header and len(columns) == len(header):
            values = _of_columns(header, columns)
            found = [values]
        elif header := _header(columns, known):
            continue
        elif cells is not None and cells.group(3):
            name = section + cells.group(2)
            table[name] = printed_number(cells.group(3))
            continue
        elif cells is not None and cells.group(2).endswith("/"):
            section = cells.group(2)
            continue
        elif table and _RULE.match(row):
            found = [table]
            table = {}
            section = ""
        else:
            announced = _announced(row, known) or announced
            found = _values(row, announced, known)
            more: Numbers = {}
            if lines and not found:
                last = lines[-1]
                more = _goes_on(row, last, known)
                lines[-1] = LogLine({**last.values, **more}, last.resumed)
            if not found and not more and _RESUMED.search(row):
                resumed = resumed or not _NOT_RESUMED.search(row)
        if found and "train_runtime" in found[0]:
            # a Trainer sums up at its end; what follows is another training
            resumed = True
            continue
        for values in filter(None, found):
            lines.append(LogLine(values, resumed))
            resumed = False
    if table:
        lines.append(LogLine(table, resumed))
    return lines


def _on_one_line(found: re.Match[str]) -> str:
    """A dict of metrics on one line; other dicts, as of settings, stay as they are."""
    text = found.group()
    names = [name for name, _ in _DICT_ITEM.findall(text)]
    metrics = _meant(names, meaning) - {"", "lr", *PLACES}
    if len(metrics) < 2:
        return text
    return text.replace("\n", " ")


def _columns(row: str) -> list[str]:
    """The cells of a line of a table: between bars, or with two blanks or a tab between them."""
    text = row.replace("│", "|").strip()
    if text.startswith("|") and text.count("|") >= 2:
        return [cell.strip() for cell in text.strip("|").split("|")]
    return [cell for cell in re.split(r"\s{2,}|\t", text) if cell]


def _header(columns: list[str], known: Known) -> list[str]:
    """The names over a table where one begins: a column counts steps or epochs, another is a metric, none is a number.

    A name that is not known may end in a known one: RM score, human-eval accuracy (%). The first column is a place or
    a metric: in a report it may name a run, and then an epoch beside it is no place of a log.
    """
    if len(columns) < 2 or any(_CELL.fullmatch(cell) for cell in columns):
        return []
    plain = []
    for cell in columns:
        plain.append(re.sub(r"\s*[(（\[](?:%|nats|tokens|mean|avg)[)）\]]$", "", cell))
    meant = _meant(plain, known)
    names = []
    kinds = []
    for cell in plain:
        name = cell
        found = known(cell)
        if found is None:
            end = _known_end(cell, known) or ""
            of_end = known(end)
            if of_end is not None and of_end[0] not in meant:
                name = end
                found = of_end
                meant.add(of_end[0])
        names.append(name)
        if found is not None:
            kinds.append(found[0] in PLACES)
    # a data frame as Markdown has no name over the numbers of its rows
    first = known(names[0] or names[1])
    if first and any(kinds) and not all(kinds):
        return names
    return []


def _meant(names: Iterable[str], known: Known) -> set[str]:
    """Our names for some printed ones."""
    return {(known(name) or _BY_USER)[0] for name in names}


def _of_columns(header: list[str], columns: list[str]) -> Numbers:
    """A row of a table by its header; nothing where it does not begin with a number (a Trainer may have "No log")."""
    values: Numbers = {}
    for name, column in zip(header, columns, strict=True):
        cell = _CELL.fullmatch(column.strip("* "))
        if cell is None and name == header[0] and column.lower() != "no log":
            return {}
        if cell is not None and not _rounded_away(name, cell.group(1)):
            values[name] = printed_number(*cell.groups())
    return values


_TELLS = {"lr": 1e-7, "kl_prox": 1e-6, "kl": 1e-4}
"""How small a number must be to say that nothing moves; a zero that was rounded before that says nothing."""


def _rounded_away(name: str, shown: str) -> bool:
    """Whether a printed zero may be a number that matters: a learning rate of 1e-6 printed as 0.000 (verl)."""
    # Python prints a true zero as 0.0
    decimals = re.fullmatch(r"[+-]?0\.(0{2,})", shown)
    least = _TELLS.get((meaning(name) or _BY_USER)[0])
    if decimals is None or least is None:
        return False
    return 0.5 * 10.0 ** -len(decimals.group(1)) > least


def printed_number(text: str, percent: str = "") -> float | None:
    """A printed number, None where it is not finite."""
    value = float(text.replace(",", ""))
    if not math.isfinite(value):
        return None
    if percent:
        return value / 100.0
    return value


def _values(row: str, announced: Numbers, known: Known) -> list[Numbers]:
    """The metrics of one printed line, under their printed names; several where a sentence tells of several steps."""
    verl = _VERL.search(row)
    if verl is not None:
        values: Numbers = {"step": float(verl.group(1))}
        for part in verl.group(2).split(" - "):
            name, _, shown = part.rpartition(":")
            shown = re.sub(r"^np\.\w+\((.*)\)$", r"\1", shown.strip())
            number = re.fullmatch(_NUMBER, shown, re.IGNORECASE)
            if name and number and not _rounded_away(name, shown):
                values[name.strip()] = printed_number(shown)
        return [values]
    for found in _DICT.finditer(row):
        items: Numbers = {}
        for name, value in _DICT_ITEM.findall(found.group()):
            items[name] = printed_number(value)
        if any(map(known, items)):
            # step 12: {...}
            place = _PLACE.search(row[: found.start()])
            if place:
                items.setdefault("step", _place(place)[1])
            return [items]
    told = _sentences(row, known) or [_pairs(row, announced, known)]
    return [values for values in told if values]


def _announced(row: str, known: Known) -> Numbers:
    """The epoch that this short line begins with and says no metric of; the numbers are on the lines below."""
    place = _PLACE.search(row)
    if place is None or len(row.split()) > 8:
        return {}
    if _pairs(row, {}, known):
        return {}
    if not _BEFORE.fullmatch(row[: place.start()]):
        return {}
    return dict([_place(place)])


def _sentences(row: str, known: Known) -> list[Numbers]:
    """Running text that tells the same of several steps; nothing where the line does not speak so."""
    ends = [found.start() for found in _PLACE.finditer(row)]
    told: list[Numbers] = []
    for start, end in pairwise([*ends, len(row)]):
        values = _pairs(row[start:end], {}, known)
        if told and values.keys() != told[0].keys():
            return []
        if not values:
            return []
        told.append(values)
    if len(told) < 2:
        return []
    return told


def _place(found: re.Match[str]) -> tuple[str, float]:
    """(step or epoch, its number)."""
    word = found.group("name") or found.group("kind")
    number = float(found.group("number") or found.group("count"))
    if "epoch" in word.lower() or "轮" in word:
        return "epoch", number
    return "step", number


def _pairs(row: str, announced: Numbers, known: Known) -> Numbers:
    """`step 12 kl=0.04 reward 0.3`: a place (or the one announced above) and a known name with its number.

    Without a place the user must name one of the numbers.
    """
    places = dict(map(_place, _PLACE.finditer(row))) or announced
    values: Numbers = {}
    by_user = False
    rest = _PLACE.sub(" | ", row)
    for name, shown, percent in _PAIR.findall(rest):
        end = _known_end(name, known)
        if end is not None and not _rounded_away(end, shown):
            values.setdefault(end, printed_number(shown, percent))
            by_user = by_user or known(end) == _BY_USER
    if not values or not (places or by_user):
        return {}
    return {**places, **values}


def _goes_on(row: str, before: LogLine, known: Known) -> Numbers:
    """More metrics of the step that the line above told of; nothing where the row says anything else or the same."""
    told = _meant(before.values, known)
    if len(row) > 400 or told.isdisjoint(PLACES):
        return {}
    if not _GOES_ON.fullmatch(row.strip()):
        return {}
    more: Numbers = {}
    for name, value in _pairs(row, {"step": 0.0}, known).items():
        if not _meant([name], known) & {*told, *PLACES}:
            more[name] = value
    return more


def _known_end(text: str, known: Known) -> str | None:
    """The longest end of a text, in words, that is a known metric name."""
    if re.search(r"[\u4e00-\u9fff]", text):
        text = _AFTER.split(text)[-1]
    words = text.split()
    while words and _BETWEEN.fullmatch(words[-1]):
        words.pop()
    # no known name has more than five words
    first = max(0, len(words) - 5)
    for start in range(first, len(words)):
        found = known(" ".join(words[start:]))
        if found is None or found[0] in PLACES:
            continue
        # "auxiliary loss" is a part of the loss, or another one
        before = words[max(0, start - 1) : start]
        if found[0] == "loss/total" and not all(map(_FILLS.fullmatch, before)):
            return None
        return " ".join(words[start:])
    return None
