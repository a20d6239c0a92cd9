"""A trained selector in the hand: chooses from the labelled set, in order, the same after saving and loading."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from PIL import Image
from tiny_world import TinyRun

import leverplus
from leverplus.errors import DataError, LeverError, MissingFile
from leverplus.evaluation.predictions import read_predictions
from leverplus.folder import PULSE
from leverplus.pipeline import load_run
from leverplus.policies.items import choose_demos
from leverplus.serving.selector import Selector

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
    assert {item.split for item in chosen} == {"train"}
    assert all(item.answers for item in chosen)


def test_a_picture_and_its_file_are_the_same_query(selector: Selector, picture: Image.Image, tmp_path: Path) -> None:
    path = tmp_path / "query.png"
    picture.save(path)
    expected = selector.select(image=picture, question=QUESTION, shots=2)
    assert selector.select(image=path, question=QUESTION, shots=2) == expected
    assert selector.select(image=str(path), question=QUESTION, shots=2) == expected


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


def test_a_saved_selector_chooses_the_same_and_needs_no_run(
    selector: Selector, picture: Image.Image, tmp_path: Path
) -> None:
    folder = selector.save(tmp_path / "deep" / "saved")
    assert {path.name for path in folder.iterdir()} == {"recipe.toml", "resolved.toml", "run.json", "checkpoints"}
    assert [path.name for path in folder.parent.iterdir()] == ["saved"]
    again = Selector.load(folder)
    expected = selector.select(image=picture, question=QUESTION, shots=4)
    assert again.select(image=picture, question=QUESTION, shots=4) == expected
    again.run.tell("embedding", 1, 2)  # serving is no work on the run
    assert not (folder / PULSE).exists()
    with pytest.raises(LeverError, match="exists already; choose another folder"):
        selector.save(folder)


def test_a_folder_that_cannot_be_written_is_named_and_left_clean(selector: Selector, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(LeverError, match=r"cannot save the selector to .*choose another folder"):
        selector.save(tmp_path / "file" / "saved")


def test_what_it_cannot_do_is_said_in_a_sentence(selector: Selector, picture: Image.Image, tmp_path: Path) -> None:
    for shots in (0, 9):
        with pytest.raises(LeverError, match=f"chooses 1 to 8 demonstrations, not {shots}"):
            selector.select(image=picture, question=QUESTION, shots=shots)
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
    with pytest.raises(MissingFile, match="is not a run folder"):
        Selector.load(tmp_path)
