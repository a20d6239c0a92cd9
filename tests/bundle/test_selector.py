"""A trained selector in the hand: chooses from the labelled set, in order, the same for every form of a query."""

from __future__ import annotations

import base64
import io
import json
import re
import shutil
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient
from PIL import Image
from tiny_world import TinyRun

import leverplus
from leverplus.bundle.demo import clean_picture
from leverplus.bundle.selector import Selector
from leverplus.cli.main import main
from leverplus.data.pictures import as_rgb
from leverplus.data.rundir import PROGRESS
from leverplus.errors import LeverError, MissingFile
from leverplus.evaluate.predictions import read_predictions
from leverplus.run.run import load_run
from leverplus.web.view import create_view

QUESTION = "what does it like"


@pytest.fixture(scope="module")
def selector(tiny_run: TinyRun) -> Selector:
    return Selector.load(tiny_run.folder)


@pytest.fixture(scope="module")
def picture(selector: Selector) -> Image.Image:
    task = selector.run.task
    image = task.image(task.items("test")[4])
    assert image is not None
    return image


def in_format(picture: Image.Image, kind: str) -> bytes:
    out = io.BytesIO()
    picture.save(out, kind)
    return out.getvalue()


def test_the_package_offers_it_by_name(selector: Selector) -> None:
    assert leverplus.Selector is Selector
    assert "arm='learned'" in repr(selector)
    with pytest.raises(AttributeError, match="no attribute 'Selectr'"):
        _ = leverplus.Selectr


def test_the_same_pixels_and_words_are_the_same_query_in_every_form(
    selector: Selector,
    picture: Image.Image,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected = selector.select(image=picture, question=QUESTION, shots=4)
    assert len({demo.id for demo in expected}) == 4
    assert all(demo.answers for demo in expected)
    (tmp_path / "a b.bmp").write_bytes(in_format(picture, "BMP"))
    (tmp_path / "no_ending").write_bytes(in_format(picture, "TIFF"))
    monkeypatch.chdir(tmp_path)
    png = in_format(picture, "PNG")
    text = base64.b64encode(png).decode()
    forms = [
        png, bytearray(in_format(picture, "BMP")), "a b.bmp", Path("no_ending"), f"data:image/png;base64,{text}", text,
        np.asarray(picture), picture.convert("RGBA"), np.asarray(picture.convert("RGBA")),
        {"bytes": png, "path": None}, {"bytes": None, "path": "a b.bmp"},
    ]  # fmt: skip
    for form in forms:
        assert selector.select(image=form, question=QUESTION, shots=4) == expected
    for words in (f"  {QUESTION}", f"{QUESTION} ", QUESTION.replace(" ", " \n\t ")):
        assert selector.select(image=picture, question=words, shots=4) == expected
    other = Image.new("RGB", (32, 32), "red")
    assert selector.select(image=other, question=QUESTION, shots=4) != expected
    assert selector.select(image=picture, question="it fears", shots=4) != expected


@pytest.mark.parametrize("nothing", [None, "", {"bytes": None, "path": None}])
def test_no_picture_is_none(nothing: Any) -> None:
    assert clean_picture(nothing) is None


def test_it_serves_from_the_pools_it_was_trained_with_and_never_itself(
    selector: Selector, picture: Image.Image
) -> None:
    """Pools hold 16 at random here, drawn for a query by its words and pixels, in evaluation and in use."""
    run, way = selector.run, selector.way
    item, own = run.task.items("test")[4], run.demonstrations[7]
    asked = run.asked([item, own])
    pool, others = way.candidates(asked, run.corpus)
    assert (len(run.demonstrations), len(set(pool.tolist()))) == (8000, 16)
    chosen = selector.select(image=picture, question=f" {item.question} ", shots=4)
    assert {one.id for one in chosen} <= {run.demonstrations[row].id for row in pool}
    shown = {run.demonstrations[row].image_id for row in others}
    assert own.image_id not in shown


@pytest.mark.parametrize(
    "mode", ["1", "L", "LA", "P", "CMYK", "YCbCr", "I;16", "I", "F", "RGBA"]
)
def test_pictures_of_every_mode_are_taken(picture: Image.Image, mode: str) -> None:
    odd = Image.fromarray(np.asarray(picture.convert("L")).astype(np.uint16) * 256)
    if mode != "I;16":
        odd = (odd if mode == "I" else picture).convert(mode)
    found = clean_picture(odd)
    assert found is not None
    assert (found.mode, found.size) == ("RGB", picture.size)
    if mode in ("I;16", "I"):
        grey = picture.convert("L").convert("RGB")
        assert np.array_equal(np.asarray(as_rgb(odd)), np.asarray(grey))


@pytest.mark.parametrize(
    ("image", "what"),
    [
        ("https://x.org/a.png", "no image file .*, and addresses are not fetched"),
        ("data:image/png;base64,%%%", "there is no image file"),
        ("data:,abc", "there is no image file"),
        ("x/" + "a" * 80, "there is no image file"),
        (b"not a picture", "the picture cannot be read as a picture"),
        (b"", "cannot be read as a picture"),
        (17, "a picture cannot be a int; give a path"),
        (np.zeros((4, 4, 7), np.uint8), "cannot be read as a picture"),
        (np.zeros((4, 4, 3)), "a picture cannot be a ndarray"),
        (np.zeros((0, 4), np.uint8), "has no pixels"),
        ("a\0b", "there is no image file"),
        ("n" * 5000, "there is no image file|cannot be read as a picture"),
        ("/", "there is no image file"),
        ("/dev/zero", "there is no image file"),
        (__file__, r"test_selector\.py cannot be read .*it is in no format"),
    ],
)
def test_what_is_no_picture_is_said_in_a_sentence(image: Any, what: str) -> None:
    with pytest.raises(LeverError, match=what):
        clean_picture(image)


def test_a_picture_of_270_megapixels_is_refused_before_it_is_unpacked(
    picture: Image.Image, tmp_path: Path
) -> None:
    path, content = tmp_path / "huge.bmp", in_format(picture, "BMP")
    for size, what in (((27_000, 10_000), "too many pixels"), ((10_000, 10_000), "")):
        path.write_bytes(content[:18] + struct.pack("<ii", *size) + content[26:])
        with pytest.raises(LeverError, match=rf"huge\.bmp .*{what}.* at most 89,478"):
            clean_picture(path)


def test_the_command_and_the_page_choose_the_same(
    selector: Selector,
    tiny_run: TinyRun,
    picture: Image.Image,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    picture.save(tmp_path / "a.png")
    asked = ["--image", str(tmp_path / "a.png"), "--question", QUESTION, "-k", "2"]
    assert main(["select", str(tiny_run.folder), *asked]) == 0
    printed = capsys.readouterr().out
    assert main(["select", str(tiny_run.folder), *asked, "--json"]) == 0
    demos = json.loads(capsys.readouterr().out)["demos"]
    lines = [f"{own['id']}  {own['question']}  ->  {own['answer']}\n" for own in demos]
    assert printed == "".join(lines)
    app = create_view(tiny_run.folder)
    client = TestClient(app, base_url="http://127.0.0.1:8765")
    made = client.post(
        f"/run/{tiny_run.folder.name}/try",
        data={"question": f" {QUESTION}  ", "shots": "2"},
        files={"image": ("x.png", in_format(picture, "PNG"))},
    )
    picked = made.text.split("Picked, in prompt order")[1].split("<h3>")[0]
    shown = re.findall(r'class="card" title="([^"]+)"', picked)
    assert shown == [own["id"] for own in demos]


def test_it_chooses_what_was_evaluated(tiny_run: TinyRun, selector: Selector) -> None:
    results = read_predictions(tiny_run.folder / "predictions.parquet")
    task = load_run(tiny_run.folder).task
    for own in results.draws["learned"][2][0]:
        item = task.item(own.item)
        picks = selector.select(question=item.question, image=task.image(item), shots=2)
        assert tuple(demo.id for demo in picks) == own.demos


def test_serving_is_no_work_on_the_run(selector: Selector) -> None:
    pulse = selector.run.folder / PROGRESS
    before = pulse.stat().st_mtime_ns
    selector.run.show_progress("embedding", 1, 2)
    assert pulse.stat().st_mtime_ns == before


def test_a_folder_that_cannot_be_written_is_named_and_left_clean(
    selector: Selector, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(LeverError, match=r"cannot write .*saved .*make room, or make"):
        selector.save(tmp_path / "file" / "saved")


def test_what_it_cannot_do_is_said_in_a_sentence(
    selector: Selector, picture: Image.Image
) -> None:
    def refused(what: str, **asked: Any) -> None:
        with pytest.raises(LeverError, match=what):
            selector.select(**{"image": picture, "question": QUESTION, **asked})

    for shots in (-1, 9, 10**30):
        refused(rf"0 to 8 demonstrations, not {shots}; ask for 8", shots=shots)
    for strange in ("2", 1.5, True, [2]):
        refused("shots must be a whole number from 0 to 8, not", shots=strange)
    refused("must be a text, not NoneType", question=None)
    refused("must be a text", question=b"a")
    refused("half of a", question="a \ud800")
    refused("the question is empty", question="  ")
    refused("at most 100,000 are taken", question="a" * 100_001)
    refused("needs one; pass --image FILE", image=None)


def test_a_run_without_a_trained_selector_is_told_what_to_type(
    tiny_run: TinyRun, tmp_path: Path
) -> None:
    folder = tmp_path / "untrained"
    folder.mkdir()
    for name in ("recipe.toml", "resolved.toml", "run.json"):
        shutil.copy(tiny_run.folder / name, folder)
    trained = f"no trained selector yet; type `lever train {folder}`"
    with pytest.raises(MissingFile, match=trained):
        Selector.load(folder)
    with pytest.raises(MissingFile, match="is neither a bundle nor a run folder"):
        Selector.load(tmp_path)
