"""Lines that trainings print: dicts (Transformers, TRL, OpenRLHF), `step:1 - a:b` (verl), tables (SB3), `a b`."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping

from leverplus.doctor.logs.names import PLACES, LogLine, meaning

Known = Callable[[str], tuple[str, int] | None]
"""What a printed name means, by the table or because the user said so."""
_BY_USER = ("", 0)
"""The meaning of a name that the user says is a metric."""

# 12, 1,234, 0.5, .5, 3., 1e-5, nan, inf
_NUMBER = r"[+-]?(?:\d+(?:,\d{3})+|\d*\.\d+|\d+\.?)(?:[eE][+-]?\d+)?|[+-]?(?:nan|inf(?:inity)?)"
# what may stand before a number: loss=tensor(0.4), return=[13.], np.float64(0.4)
_WRAPPED = r"(?:tensor\(|np\.\w+\(|\[)?"
# {'loss': 0.4, 'kl': tensor(0.01)}: braces without braces inside, at least one quoted name
_DICT = re.compile(r"\{[^{}]*['\"][^{}]*\}")
_DICT_ITEM = re.compile(rf"['\"]([^'\"]+)['\"]\s*:\s*(?:tensor\(|np\.float\d+\()?['\"]?({_NUMBER})(?![\w.])", re.I)
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
_BETWEEN = re.compile(r"was|is|were|are|at|of|to|reached|around|about|had|stood|fell|rose|dropped|went|climbed", re.I)
# a line of names and numbers and nothing else, which goes on with what the line above began: reward: 0.4 | length: 12
_GOES_ON = re.compile(rf"\W*(?:[^|;:=\d]+[:=]\s*{_WRAPPED}(?:{_NUMBER})\s*[%\])]?\s*(?:[|,;]\s*|$))+", re.I)
# words before "loss" that leave it the loss of the training
_FILLS = re.compile(
    r"the|its|a|and|with|while|of|mean|avg|average|current|final|step|batch|epoch|running|smoothed|\W+|.*[,;|]", re.I
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
_NOT_RESUMED = re.compile(r"resume[_ ](?:from[_ ]checkpoint|mode|training)?\s*[=:]\s*(?:none|false|disable|null)", re.I)


def read_console(text: str, named: Collection[str] = ()) -> list[LogLine]:
    """The metric lines of what a training printed, in order; none where there are none.

    `named` are names that the user says are metrics.
    """

    def told_by_user(name: str) -> tuple[str, int] | None:
        return _BY_USER if name in named else meaning(name)

    known: Known = told_by_user if named else meaning
    lines: list[LogLine] = []
    table: dict[str, float | None] = {}  # a table of one step that is not complete yet (Stable-Baselines3)
    section, resumed = "", False
    header: list[str] = []  # of a table with a row per step, as long as its rows go on
    under: dict[str, float] = {}  # the epoch that a line of its own announced (Keras, plain PyTorch)
    told: dict[str, float] = {}  # the place of the last line that told metrics (DeepSpeed-Chat has more on the next)
    for row in _SPREAD_DICT.sub(_on_one_line, text).splitlines():
        columns = _columns(row)
        if header and len(columns) == len(header) + 1 and columns[0].isdigit():
            columns = columns[1:]  # a data frame prints the number of the row, under no name
        if header and len(columns) == len(header):
            values = _of_columns(header, columns)
            if values:
                lines.append(LogLine(values, resumed))
                resumed = False
            continue
        named_columns = _header(columns, known)
        header = named_columns if _is_header(named_columns, known) else []
        if header:
            continue
        cells = _ROW.match(row.replace("│", "|").replace("┃", "|").replace("║", "|"))
        if cells is not None and (cells.group(3) is not None or cells.group(2).endswith("/")):
            if cells.group(3) is None:
                section = cells.group(2)
            else:
                table[f"{section}{cells.group(2)}"] = printed_number(cells.group(3))
            continue
        if table and _RULE.match(row):
            lines.append(LogLine(table, resumed))
            table, section, resumed = {}, "", False
            continue
        under = _announced(row, known) or under
        found = _values(row, under, known)
        if found and "train_runtime" in found[0]:
            resumed = True  # a Trainer sums up at its end; what follows is another training
        elif found:
            lines += [LogLine(values, resumed and place == 0) for place, values in enumerate(found)]
            told = {name: value for name, value in found[-1].items() if name in PLACES and value is not None}
            resumed = False
        elif told and (more := _goes_on(row, lines[-1].values, known)):
            lines[-1] = LogLine({**lines[-1].values, **more}, lines[-1].resumed)
        elif _RESUMED.search(row) and not _NOT_RESUMED.search(row):
            resumed = True
    if table:
        lines.append(LogLine(table, resumed))
    return lines


def _on_one_line(found: re.Match[str]) -> str:
    """A dict of metrics on one line; other dicts, as of settings, stay as they are."""
    names = [meaning(name) for name, _ in _DICT_ITEM.findall(found.group())]
    metrics = {own[0] for own in names if own is not None} - {*PLACES, "lr"}
    return found.group().replace("\n", " ") if len(metrics) >= 2 else found.group()


def _columns(row: str) -> list[str]:
    """The cells of a line of a table: between bars, or with two blanks or a tab between them."""
    text = row.replace("│", "|").strip()
    if text.startswith("|") and text.count("|") >= 2:
        return [cell.strip() for cell in text.strip("|").split("|")]
    return [cell for cell in re.split(r"\s{2,}|\t", text) if cell]


def _header(columns: list[str], known: Known) -> list[str]:
    """The names over a table; one that is not known may end in a known one: RM score, human-eval accuracy (%)."""
    if len(columns) < 2 or any(_CELL.fullmatch(cell) for cell in columns):
        return []
    plain = [re.sub(r"\s*[(（\[](?:%|nats|tokens|mean|avg)[)）\]]$", "", cell) for cell in columns]
    meant = {found[0] for cell in plain if (found := known(cell)) is not None}
    names = []
    for cell in plain:
        end = _known_end(cell, known) if known(cell) is None else None
        found = known(end) if end is not None else None
        if end is not None and found is not None and found[0] not in meant:
            meant.add(found[0])
            names.append(end)
        else:
            names.append(cell)
    return names


def _is_header(columns: list[str], known: Known) -> bool:
    """Whether a table begins: a column counts steps or epochs, another is a metric, no name is a number.

    The first column is one of both: in a report it may name a run, and then an epoch beside it is no place of a log.
    """
    if not columns:
        return False
    first = known(columns[0] or columns[1])  # a data frame as Markdown has no name over the numbers of its rows
    places = [found[0] in PLACES for cell in columns if (found := known(cell)) is not None]
    return first is not None and any(places) and not all(places)


def _of_columns(header: list[str], columns: list[str]) -> dict[str, float | None]:
    """A row of a table by its header; nothing where it does not begin with a number (a Trainer may have "No log")."""
    cells = [_CELL.fullmatch(cell.strip("* ")) for cell in columns]
    if cells[0] is None and columns[0].lower() != "no log":
        return {}
    values: dict[str, float | None] = {}
    for name, cell in zip(header, cells, strict=True):
        if cell is None or _rounded_away(name, cell.group(1)):
            continue
        value = printed_number(cell.group(1))
        percent = bool(cell.group(2))
        values[name] = (value or 0.0) / 100.0 if percent else value
    return values


_TELLS = {"lr": 1e-7, "kl_prox": 1e-6, "kl": 1e-4}
"""How small a number must be to say that nothing moves; a zero that was rounded before that says nothing."""


def _rounded_away(name: str, shown: str) -> bool:
    """Whether a printed zero may be a number that matters: a learning rate of 1e-6 printed as 0.000 (verl)."""
    known = meaning(name)
    decimals = re.fullmatch(r"[+-]?0\.(0{2,})", shown)  # Python prints a true zero as 0.0
    if known is None or decimals is None or known[0] not in _TELLS:
        return False
    return 0.5 * 10.0 ** -len(decimals.group(1)) > _TELLS[known[0]]


def printed_number(text: str) -> float | None:
    """A printed number, None where it is not finite."""
    value = float(text.replace(",", ""))
    return value if math.isfinite(value) else None


def _values(row: str, under: Mapping[str, float], known: Known) -> list[dict[str, float | None]]:
    """The metrics of one printed line, under their printed names; several where a sentence tells of several steps."""
    verl = _VERL.search(row)
    if verl is not None:
        values: dict[str, float | None] = {"step": float(verl.group(1))}
        for part in verl.group(2).split(" - "):
            name, sign, shown = part.rpartition(":")
            shown = re.sub(r"^np\.\w+\((.*)\)$", r"\1", shown.strip())
            if sign and re.fullmatch(_NUMBER, shown, re.IGNORECASE) and not _rounded_away(name, shown):
                values[name.strip()] = printed_number(shown)
        return [values]
    for found in _DICT.finditer(row):
        items = {name: printed_number(value) for name, value in _DICT_ITEM.findall(found.group())}
        if any(known(name) is not None for name in items):
            place = _PLACE.search(row[: found.start()])  # "step 12: {...}"
            if place and "step" not in items:
                return [{"step": _place(place)[1], **items}]
            return [items]
    return _sentences(row, known) or [values for values in [_pairs(row, under, known)] if values]


def _announced(row: str, known: Known) -> dict[str, float]:
    """The epoch that this short line begins with and says no metric of; the numbers are on the lines below."""
    place = _PLACE.search(row)
    if place is None or not _BEFORE.fullmatch(row[: place.start()]) or len(row.split()) > 8 or _pairs(row, {}, known):
        return {}
    return dict([_place(place)])


def _sentences(row: str, known: Known) -> list[dict[str, float | None]]:
    """Running text that tells the same of several steps; nothing where the line does not speak so."""
    starts = [found.start() for found in _PLACE.finditer(row)]
    if len(starts) < 2:
        return []
    told = [_pairs(row[start:end], {}, known) for start, end in zip(starts, [*starts[1:], len(row)], strict=True)]
    return told if told[0] and all(values.keys() == told[0].keys() for values in told) else []


def _place(found: re.Match[str]) -> tuple[str, float]:
    """(step or epoch, its number)."""
    word = (found.group("name") or found.group("kind")).lower()
    kind = "epoch" if "epoch" in word or "轮" in word else "step"
    return kind, float(found.group("number") or found.group("count"))


def _pairs(row: str, under: Mapping[str, float], known: Known) -> dict[str, float | None]:
    """`step 12 kl=0.04 reward 0.3`: a place (or the one announced above) and a known name with its number."""
    places = [_place(found) for found in _PLACE.finditer(row)] or list(under.items())
    if not places and known is meaning:
        return {}  # numbers without a place, and the user names none of them
    values: dict[str, float | None] = {}
    for found in _PAIR.finditer(_PLACE.sub(" | ", row)):
        name = _known_end(found.group(1), known)
        if name is not None and name not in values and not _rounded_away(name, found.group(2)):
            value = printed_number(found.group(2))
            values[name] = value / 100.0 if found.group(3) and value is not None else value
    if not places and not any(known(name) == _BY_USER for name in values):
        return {}  # a number without a place, in a line that the user says nothing of
    return {**dict(places), **values} if values else {}


def _goes_on(row: str, before: Mapping[str, float | None], known: Known) -> dict[str, float | None]:
    """More metrics of the step that the line above told of; nothing where the row says anything else or the same."""
    if len(row) > 400 or not _GOES_ON.fullmatch(row.strip()):
        return {}
    meant = {own[0] for name in before if (own := known(name)) is not None}
    values = _pairs(row, {"step": 0.0}, known)
    return {name: value for name, value in values.items() if (own := known(name)) and own[0] not in {*meant, *PLACES}}


def _known_end(text: str, known: Known) -> str | None:
    """The longest end of a text, in words, that is a known metric name."""
    words = _AFTER.split(text)[-1].split() if re.search(r"[\u4e00-\u9fff]", text) else text.split()
    while words and _BETWEEN.fullmatch(words[-1]):
        words.pop()
    for start in range(max(0, len(words) - 5), len(words)):  # no known name has more than five words
        name = " ".join(words[start:])
        found = known(name)
        if found is not None and found[0] not in PLACES:
            part = found[0] == "loss/total" and start > 0 and not _FILLS.fullmatch(words[start - 1])
            return None if part else name  # "auxiliary loss" is a part of the loss, or another one
    return None
