"""A trained selector in the hand: chooses from the labelled set, in order, the same after saving and loading."""

from __future__ import annotations

import base64
import io
import json
import shutil
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tiny_world import TinyRun

import leverplus
from leverplus.cli.main import main
from leverplus.errors import DataError, LeverError, MissingFile
from leverplus.evaluation.predictions import read_predictions
from leverplus.experiment.opening import load_run
from leverplus.policies.items import choose_demos
from leverplus.pools.similarity import similarity
from leverplus.rundir import PROGRESS
from leverplus.selector.selector import Selector
from leverplus.tasks.pictures import as_rgb
from leverplus.view.attempt import attempt

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


def test_the_package_offers_it_by_name() -> None:
    assert leverplus.Selector is Selector
    with pytest.raises(AttributeError, match="no attribute 'Selectr'"):
        _ = leverplus.Selectr


def test_it_chooses_distinct_labelled_items(selector: Selector, picture: Image.Image) -> None:
    chosen = selector.select(image=picture, question=QUESTION, shots=3)
    assert len({item.id for item in chosen}) == 3
    labelled = {item.id for item in selector.run.task.items("train")}
    assert {item.id for item in chosen} <= labelled
    assert all(item.answers for item in chosen)


def test_a_picture_and_its_file_are_the_same_query(selector: Selector, picture: Image.Image, tmp_path: Path) -> None:
    path = tmp_path / "query.png"
    picture.save(path)
    expected = selector.select(image=picture, question=QUESTION, shots=2)
    assert selector.select(image=path, question=QUESTION, shots=2) == expected
    assert selector.select(image=str(path), question=QUESTION, shots=2) == expected


def in_format(picture: Image.Image, kind: str) -> bytes:
    out = io.BytesIO()
    picture.save(out, kind)
    return out.getvalue()


def test_the_same_pixels_and_words_are_the_same_query_in_every_form(
    selector: Selector, picture: Image.Image, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = selector.select(image=picture, question=QUESTION, shots=4)
    (tmp_path / "a b.bmp").write_bytes(in_format(picture, "BMP"))
    (tmp_path / "no_ending").write_bytes(in_format(picture, "TIFF"))
    monkeypatch.chdir(tmp_path)
    url = "data:image/png;base64," + base64.b64encode(in_format(picture, "PNG")).decode()
    forms = [
        in_format(picture, "PNG"), bytearray(in_format(picture, "BMP")), "a b.bmp", Path("no_ending"),
        url, np.asarray(picture), picture.convert("RGBA"), np.asarray(picture.convert("RGBA")),
    ]  # fmt: skip
    for form in forms:
        assert selector.select(image=form, question=QUESTION, shots=4) == expected
    for words in (f"  {QUESTION}", f"{QUESTION} ", QUESTION.replace(" ", " \n\t ")):
        assert selector.select(image=picture, question=words, shots=4) == expected


def test_it_serves_from_the_nearest_of_the_whole_labelled_set(selector: Selector, picture: Image.Image) -> None:
    """Pools of training hold 16 at random here; a query in use gets the 64 nearest of 8,000, found by brute force."""
    task, run = selector.run.task, selector.run
    item = task.items("test")[4]
    _, rows = selector.read(item)
    vectors = run.embedder.embed([item], task)
    assert vectors.image is not None
    near = similarity(vectors, run.demonstration_vectors, run.recipe.pool.text_weight)[0]
    assert (len(run.demonstrations), len(rows)) == (8000, 64)
    assert near[rows].min() >= np.sort(near)[::-1][63] - 1e-6
    assert np.all(np.diff(near[rows]) <= 1e-6)
    chosen = selector.select(image=picture, question=item.question, shots=4)
    assert {one.id for one in chosen} <= {run.demonstrations[row].id for row in rows}


def test_a_query_of_the_labelled_set_never_gets_itself_nor_its_picture(selector: Selector) -> None:
    item = selector.run.demonstrations[7]
    _, rows = selector.read(item)
    assert item.image_id not in {selector.run.demonstrations[row].image_id for row in rows}


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "CMYK", "YCbCr", "I;16", "I", "F", "RGBA"])
def test_pictures_of_every_mode_are_taken(selector: Selector, picture: Image.Image, tmp_path: Path, mode: str) -> None:
    wide = Image.fromarray(np.asarray(picture.convert("L")).astype(np.uint16) * 256)
    odd = wide if mode == "I;16" else wide.convert("I") if mode == "I" else picture.convert(mode)
    assert len(selector.select(image=odd, question=QUESTION, shots=2)) == 2
    if mode in ("I;16", "I"):
        grey = picture.convert("L").convert("RGB")
        assert np.array_equal(np.asarray(as_rgb(odd)), np.asarray(grey))


@pytest.mark.parametrize(
    ("image", "what"),
    [
        ("https://x.org/a.png", "is an address, and pictures are not fetched"),
        ("data:image/png;base64,%%%", "is not base64"),
        ("data:,abc", "begins with data:image/png;base64,"),
        (b"not a picture", "the picture cannot be read as a picture"),
        (b"", "cannot be read as a picture"),
        (17, "a picture cannot be a int; give a path"),
        (np.zeros((4, 4, 2), np.uint8), "is not a picture"),
        (np.zeros((4, 4, 3)), "array of float64"),
        (np.zeros((0, 4), np.uint8), "is not a picture"),
        ("a\0b", "NUL"),
        ("n" * 5000, "cannot be read as a picture .File name too long"),
        ("/", "is a folder"),
        (__file__, r"test_selector\.py cannot be read as a picture .it is in no format"),
    ],
)
def test_what_is_no_picture_is_said_in_a_sentence(selector: Selector, image: object, what: str) -> None:
    with pytest.raises(LeverError, match=what):
        selector.select(image=image, question=QUESTION)


def test_a_picture_of_270_megapixels_is_refused_before_it_is_unpacked(selector: Selector, tmp_path: Path) -> None:
    path = tmp_path / "huge.png"
    path.write_bytes(png_header(27_000, 10_000))
    with pytest.raises(LeverError, match=r"huge\.png cannot be read as a picture .it has too many pixels"):
        selector.select(image=path, question=QUESTION)
    path.write_bytes(png_header(10_000, 10_000))
    with pytest.raises(LeverError, match="pixels; at most 89,478,485"):
        selector.select(image=path, question=QUESTION)


def png_header(width: int, height: int) -> bytes:
    """The head of a PNG that claims a size, without its pixels."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", b"") + chunk(b"IEND", b"")


def test_the_command_prints_questions_as_they_are(
    tiny_run: TinyRun, picture: Image.Image, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture.save(tmp_path / "a.png")
    words = ["select", str(tiny_run.folder), "--image", str(tmp_path / "a.png"), "--question", QUESTION, "-k", "2"]
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert main([*words, "--json"]) == 0
    demos = json.loads(capsys.readouterr().out)["demos"]
    assert printed == "".join(f"{demo['id']}  {demo['question']}  ->  {demo['answer']}\n" for demo in demos)
    assert "?" not in printed


def test_the_page_tries_what_the_command_chooses(selector: Selector, picture: Image.Image) -> None:
    made = attempt(selector, question=f" {QUESTION}  ", shots=3, picture=in_format(picture, "PNG"))
    chosen = selector.select(image=in_format(picture, "BMP"), question=QUESTION, shots=3)
    assert made.choice.demos == tuple(item.id for item in chosen)


def test_another_question_or_picture_is_another_choice(selector: Selector, picture: Image.Image) -> None:
    one = selector.select(image=picture, question=QUESTION, shots=2)
    assert selector.select(image=picture, question="what does it fear", shots=2) != one
    assert selector.select(image=Image.new("RGB", (32, 32), "red"), question=QUESTION, shots=2) != one


def test_it_chooses_what_was_evaluated(tiny_run: TinyRun, selector: Selector) -> None:
    results = read_predictions(tiny_run.folder / "predictions.parquet")
    run = load_run(tiny_run.folder)
    pools, table = run.pools([run.task.item(item) for item in results.items])
    chosen = choose_demos(selector.policy, table, pools, 2)
    assert [own.demos for own in results.draws["learned"][2][0]] == [tuple(demos) for demos in chosen]


def test_a_saved_selector_is_a_bundle_that_chooses_the_same(
    selector: Selector, picture: Image.Image, tmp_path: Path
) -> None:
    folder = selector.save(tmp_path / "deep" / "saved")
    assert {path.name for path in folder.iterdir()} == {
        "bundle.json", "demos.sqlite", "README.md", "selector",
        "vectors.text.npy", "vectors.answer.npy", "vectors.image.npy",
    }  # fmt: skip
    assert [path.name for path in folder.parent.iterdir()] == ["saved"]
    again = Selector.load(folder)
    expected = [demo.id for demo in selector.select(image=picture, question=QUESTION, shots=4)]
    assert [demo.id for demo in again.select(image=picture, question=QUESTION, shots=4)] == expected
    with pytest.raises(LeverError, match="exists already; choose another folder"):
        selector.save(folder)
    with pytest.raises(LeverError, match="lies in a bundle already"):
        again.save(tmp_path / "other")


def test_serving_is_no_work_on_the_run(selector: Selector) -> None:
    pulse = selector.run.folder / PROGRESS
    before = pulse.stat().st_mtime_ns
    selector.run.show_progress("embedding", 1, 2)
    assert pulse.stat().st_mtime_ns == before


def test_a_folder_that_cannot_be_written_is_named_and_left_clean(selector: Selector, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(LeverError, match=r"cannot write .*saved .*make room, or make"):
        selector.save(tmp_path / "file" / "saved")


def test_what_it_cannot_do_is_said_in_a_sentence(selector: Selector, picture: Image.Image, tmp_path: Path) -> None:
    assert selector.select(image=picture, question=QUESTION, shots=0) == []
    for shots in (-1, 9, 10**30):
        with pytest.raises(LeverError, match=rf"chooses 0 to 8 demonstrations, not {shots}; ask for 8 \(--shots 8\)"):
            selector.select(image=picture, question=QUESTION, shots=shots)
    for strange in ("2", 1.5, True, [2]):
        with pytest.raises(LeverError, match="shots must be a whole number from 0 to 8, not"):
            selector.select(image=picture, question=QUESTION, shots=strange)  # type: ignore[arg-type]
    for question, what in ((None, "must be a text, not NoneType"), (b"a", "must be a text"), ("a \ud800", "half of a")):
        with pytest.raises(LeverError, match=what):
            selector.select(image=picture, question=question)  # type: ignore[arg-type]
    with pytest.raises(LeverError, match="the question is empty"):
        selector.select(image=picture, question="  ")
    with pytest.raises(MissingFile, match="there is no image file"):
        selector.select(image=tmp_path / "none.png", question=QUESTION)
    with pytest.raises(DataError, match="needs one; pass --image FILE"):
        selector.select(question=QUESTION)


def test_a_run_without_a_trained_selector_is_told_what_to_type(tiny_run: TinyRun, tmp_path: Path) -> None:
    folder = tmp_path / "untrained"
    folder.mkdir()
    for name in ("recipe.toml", "resolved.toml", "run.json"):
        shutil.copy(tiny_run.folder / name, folder)
    with pytest.raises(MissingFile, match=f"no trained selector yet; type `lever train {folder}`"):
        Selector.load(folder)
    with pytest.raises(MissingFile, match="is neither a bundle nor a run folder; `lever fit DATA"):
        Selector.load(tmp_path)
