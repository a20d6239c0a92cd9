"""A bundle: carries everything, chooses the same wherever it lies, takes and forgets demonstrations."""

from __future__ import annotations

import base64
import copy
import io
import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bundles import entries, ids, make_bundle, open_words, vector_of
from PIL import Image
from tiny_world import TinyRun

from leverplus.arms import index
from leverplus.arms.effects import EffectsArm
from leverplus.arms.fixed import Fixed
from leverplus.bundle import bundle as bundle_module
from leverplus.bundle.demo import pixel_digest
from leverplus.bundle.selector import Selector
from leverplus.cli.main import main
from leverplus.errors import DataError, LeverError
from leverplus.run.pack import pack_run
from leverplus.run.run import load_run

ASKED = "word3 thing4"
LIKES = "what does it like"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_bundle(tmp_path / "bundle")


def by_hand(question: str, count: int, skip: set[str] | None = None) -> list[str]:
    """The nearest by brute force, nearest last."""
    own = [entry for entry in entries(40) if entry.id not in (skip or set())]
    near = [float(vector_of(entry.question) @ vector_of(question)) for entry in own]
    best = sorted(range(len(own)), key=lambda row: (-near[row], row))[:count]
    return [own[row].id for row in reversed(best)]


def test_nearest_is_what_brute_force_finds_one_by_one_and_for_many(
    folder: Path,
) -> None:
    selector = open_words(folder)
    asked = [{"question": words} for words in (ASKED, "word11", "thing2 word9 word1")]
    expected = [by_hand(query["question"], 5) for query in asked]
    assert [ids(selector.select(**query, shots=5)) for query in asked] == expected
    assert [ids(picks) for picks in selector.select_many(asked, 5)] == expected
    assert ids(selector.select(question=ASKED)) == by_hand(ASKED, 2), "as recommended"
    assert selector.select(question=ASKED, shots=0) == []
    for wrong in ({"qestion": "a"}, "a"):
        with pytest.raises(LeverError, match="query 0: must be a mapping with"):
            selector.select_many([wrong])  # type: ignore[list-item]


def test_a_copy_chooses_the_same_and_the_original_may_be_gone(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    selector = open_words(folder)
    expected = selector.select(question=ASKED, shots=6)
    assert copy.deepcopy(selector) is copy.copy(selector) is selector
    assert pickle.loads(pickle.dumps(selector)).fingerprint == selector.fingerprint
    shutil.copytree(folder, tmp_path / "far" / "copy")
    shutil.rmtree(folder)
    monkeypatch.chdir(tmp_path / "far")
    found = open_words(Path("copy")).select(question=ASKED, shots=6)
    assert [demo.as_json() for demo in found] == [demo.as_json() for demo in expected]


def test_a_filter_is_exact_by_ids_and_by_a_function(folder: Path) -> None:
    selector = open_words(folder)
    some = {f"d{row}" for row in range(0, 40, 3)}
    expected = by_hand(ASKED, 4, {f"d{row}" for row in range(40)} - some)

    class Part:
        """A filter that says what it asks is asked once, until something changes."""

        cache_key, asked = "part=0", 0

        def __call__(self, demo: Any) -> bool:
            self.asked += 1
            return bool(demo.meta["part"] == "0")

    part = Part()
    for allowed in (some, lambda demo: demo.meta["part"] == "0", part, part):
        picks = selector.select(question=ASKED, shots=4, allowed=allowed)
        assert ids(picks) == expected
    assert part.asked == 40
    selector.delete(expected[-1:])
    left = selector.select(question=ASKED, shots=4, allowed=part)
    assert ids(left)[-3:] == expected[:-1]
    few = selector.select(question=ASKED, shots=4, allowed=["d1", "gone"])
    assert ids(few) == ["d1"], "fewer where fewer may be"
    assert selector.select(question=ASKED, shots=4, allowed=[]) == []


def test_an_added_demonstration_is_there_at_once_and_after_loading(
    folder: Path,
) -> None:
    selector = open_words(folder)
    before = selector.fingerprint
    added = selector.add([{"question": ASKED, "answer": "green", "id": "mine"}])
    assert added == ["mine"]
    again = open_words(folder)
    assert selector.fingerprint == again.fingerprint != before
    for own in (selector, again):
        assert ids(own.select(question=ASKED, shots=1)) == ["mine"]
        assert len(own) == 41
    facts = json.loads((folder / "bundle.json").read_text())
    assert facts["demonstrations"]["count"] == 41


def test_equal_records_are_kept_once_and_equal_ids_refused(folder: Path) -> None:
    selector = open_words(folder)
    green = {"question": ASKED, "answer": "green"}
    one = selector.add([green, green])
    assert (len(one), one.known) == (1, [])
    again = selector.add([green, {**green, "id": one[0]}, {**green, "id": "x"}])
    assert (again, again.known) == ([one[0], "x"], one)
    assert len(selector) == 42
    for rows, what in (
        ([{**green, "id": "new"}, {**green, "id": "d3"}], "a demonstration d3 already"),
        ([{"question": "other", "answer": "a", "id": one[0]}], "already; delete it"),
        ([{**green, "id": "y"}, {**green, "answer": "b", "id": "y"}], "has the id y"),
    ):
        with pytest.raises(LeverError, match=what):
            selector.add(rows)
    assert len(selector) == 42, "all or none"


def test_a_deleted_demonstration_never_comes_back(folder: Path) -> None:
    selector = open_words(folder)
    first, gone = selector.fingerprint, selector.select(question=ASKED, shots=1)[0].id
    assert selector.delete([gone]) == 1
    for own in (selector, open_words(folder)):
        assert ids(own.select(question=ASKED, shots=5)) == by_hand(ASKED, 5, {gone})
        assert ids(own.select(question=ASKED, shots=5, allowed=[gone])) == []
    with pytest.raises(LeverError, match="there is no demonstration nobody"):
        selector.delete(["d1", "nobody"])
    assert len(selector) == 39, "all or none"
    selector.add([{"question": ASKED, "answer": "other", "id": gone}])
    assert selector.select(question=ASKED, shots=1)[0].answer == "other"
    assert selector.fingerprint != first


def test_what_was_deleted_is_not_in_the_file_any_more(folder: Path) -> None:
    selector, file = open_words(folder), folder / "demos.sqlite"
    out = io.BytesIO()
    Image.effect_noise((40, 40), 90).save(out, "PNG")
    words = "unmistakablequestion here"
    row = {"question": words, "answer": "secret", "id": "own"}
    selector.add([{**row, "image": out.getvalue()}, {**row, "id": "same words"}])
    traces = (b"unmistakable", out.getvalue()[60:200])
    assert all(trace in file.read_bytes() for trace in traces)
    selector.delete(["own", "same words"])
    assert not any(trace in file.read_bytes() for trace in traces)


def test_another_process_sees_what_was_added_and_deleted(folder: Path) -> None:
    one, other = open_words(folder), open_words(folder)
    one.add([{"question": ASKED, "answer": "green", "id": "mine"}])
    assert ids(other.select(question=ASKED, shots=1)) == ["mine"]
    other.delete(["mine"])
    assert ids(one.select(question=ASKED, shots=1)) == by_hand(ASKED, 1)
    other.add([{"question": "word1", "answer": "a", "id": "x"}])
    one.add([{"question": "word2", "answer": "a", "id": "y"}])
    assert other.fingerprint == one.fingerprint
    assert len(one) == len(other) == 42


def test_an_explanation_names_every_candidate_and_what_nearest_would_show(
    folder: Path,
) -> None:
    picks = open_words(folder).select(question=ASKED, shots=2, explain=True)
    found = json.loads(json.dumps(picks.explanation))
    assert len(found["candidates"]) == 40
    assert found["nearest_would_show"] == ids(picks)
    places = {row["id"]: row["place"] for row in found["candidates"] if row["place"]}
    assert places == {picks[0].id: 1, picks[1].id: 2}
    for row in found["candidates"]:
        near = float(vector_of(ASKED) @ vector_of(row["question"]))
        assert row["score"] == row["similarity"] == pytest.approx(near, abs=1e-5)
        assert [row[name] for name in ("label", "effect", "interaction")] == [None] * 3


def test_measured_effects_travel_and_are_explained(tmp_path: Path) -> None:
    arm = EffectsArm()
    arm.slopes, arm.effect = {"text": 0.3}, np.zeros(40)
    arm.effect[3:5] = 0.25, -0.5
    selector = open_words(make_bundle(tmp_path / "b", arm=arm))
    selector.add([{"question": ASKED, "answer": "red", "id": "new"}])
    found = selector.select(question=ASKED, shots=1, explain=True).explanation
    assert found is not None
    effects = {row["id"]: row["effect"] for row in found["candidates"]}
    assert (effects.pop("d3"), effects.pop("d4")) == (0.25, -0.5)
    assert set(effects.values()) == {None}, "what nobody measured is null"


@pytest.mark.parametrize(
    ("arm", "expected"),
    [("zero_shot", []), (Fixed({3: [5, 9, 2]}), ["d5", "d9", "d2"]), ("random", None)],
)
def test_what_does_not_search_needs_no_embedder(
    tmp_path: Path, arm: Any, expected: list[str] | None
) -> None:
    selector = Selector.load(make_bundle(tmp_path / "b", arm=arm, shots=3))
    picks = selector.select(question=ASKED)
    assert expected is None or ids(picks) == expected
    assert ids(selector.select(question=f" {ASKED} ")) == ids(picks)
    assert len(selector.messages(question=ASKED)) == 1 + 2 * len(picks)
    if expected:
        selector.delete([expected[1]])
        assert ids(selector.select(question=ASKED)) == [expected[0], expected[2]]


def test_vectors_may_be_given_instead_of_words(folder: Path) -> None:
    selector = Selector.load(folder)  # its embedder is none that could be opened
    given = {"text": 3.0 * vector_of(ASKED)}
    picks = selector.select(question="other words", shots=3, vectors=given)
    assert ids(picks) == by_hand(ASKED, 3)
    for wrong, what in (
        ({"text": [1, 2, 3]}, "must be 16 numbers, finite and not all zero, not 3"),
        ({"text": [0.0] * 16}, "must be 16 numbers"),
        ({"smell": [1.0]}, "must be 0 numbers"),
        ({}, "must hold 'text'"),
    ):
        with pytest.raises(LeverError, match=what):
            selector.select(question="a", vectors=wrong)


def test_a_chat_holds_demonstrations_as_turns_and_a_prompt_as_text(
    tmp_path: Path,
) -> None:
    form = {"template": "Q: {question}\nA: {answer}\n", "instruction": "Be short."}
    selector = open_words(make_bundle(tmp_path / "b", model=form))
    one, two = selector.select(question=ASKED, shots=2)
    turns = [
        {"role": "user", "content": one.question}, {"role": "assistant", "content": one.answer},
        {"role": "user", "content": two.question}, {"role": "assistant", "content": two.answer},
    ]  # fmt: skip
    assert selector.turns([one, two]) == turns
    asked = {"role": "user", "content": ASKED}
    system = {"role": "system", "content": "Be short."}
    messages = selector.messages(question=ASKED, shots=2)
    assert messages == [system, *turns, asked]
    written = f"Q: {one.question}\nA: {one.answer}\nQ: {two.question}\nA: {two.answer}\nQ: {ASKED}\nA:"
    assert selector.prompt(question=ASKED, shots=2) == f"Be short.\n{written}"


@pytest.mark.parametrize(
    ("demo", "what"),
    [
        ({"question": "a"}, "needs an answer"),
        ({"question": "a", "answer": " "}, "needs an answer"),
        ({"question": "a", "answers": "abc"}, "must be a list of texts"),
        ({"answer": "a"}, "the question must be a text"),
        ({"question": "a", "answer": "b", "picture": 1}, "must be a mapping with"),
        ({"question": "a", "answer": "b", "meta": 3}, "meta must be a mapping"),
        ({"question": "a", "answer": "b", "id": ""}, "id must not be empty"),
        ({"question": "a", "answer": "b\ud800"}, "surrogates not allowed"),
        ({"question": "a", "answer": "b" * (1 << 21)}, "characters; at most"),
        ("a", "must be a mapping"),
    ],
)
def test_what_cannot_be_added_is_said_in_a_sentence(
    folder: Path, demo: object, what: str
) -> None:
    with pytest.raises(LeverError, match=what):
        open_words(folder).add([demo])  # type: ignore[list-item]
    assert len(Selector.load(folder)) == 40


def test_many_vectors_are_kept_in_half_precision_and_searched_by_faiss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("faiss")
    monkeypatch.setattr(bundle_module, "FLAT_ABOVE", 30)
    monkeypatch.setattr(index, "FLAT_ABOVE", 30)
    folder = make_bundle(tmp_path / "b", 200)
    selector = open_words(folder)
    assert selector.source.corpus.blocks["text"].base.dtype == np.float16
    selector.add([{"question": ASKED, "answer": "green", "id": "late"}])
    for own in (selector, open_words(folder)):
        assert ids(own.select(question=ASKED, shots=1)) == ["late"]
        assert own.source.corpus._of_file[1.0].precision == index.HALF


@pytest.fixture(scope="module")
def packed(tiny_run: TinyRun, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("packed") / "deep" / "world"
    return Selector.load(tiny_run.folder).save(place)


@pytest.fixture(scope="module")
def picture(tiny_run: TinyRun) -> Image.Image:
    task = Selector.load(tiny_run.folder).run.task
    image = task.image(task.items("test")[4])
    assert image is not None
    return image


@pytest.mark.slow
def test_a_packed_run_chooses_what_the_run_chooses(
    tiny_run: TinyRun, packed: Path, picture: Image.Image
) -> None:
    held = {path.name for path in packed.iterdir()}
    assert held == {"bundle.json", "demos.sqlite", "README.md", "arm"}
    assert [path.name for path in packed.parent.iterdir()] == ["world"]
    run, bundle = Selector.load(tiny_run.folder), Selector.load(packed)
    for question in (LIKES, "what is its favourite", "it fears what"):
        expected = run.select(question=question, image=picture, shots=4)
        chosen = bundle.select(question=question, image=picture, shots=4)
        assert ids(chosen) == ids(expected)
        for one, other in zip(chosen, expected, strict=True):
            assert np.array_equal(np.asarray(one.pil()), np.asarray(other.pil()))
    with pytest.raises(DataError, match="needs one; pass --image FILE"):
        bundle.select(question=LIKES)
    for change in (run.delete, run.add):
        with pytest.raises(LeverError, match="needs a bundle; type `lever pack"):
            change([])
    with pytest.raises(LeverError, match="exists already; choose another folder"):
        run.save(packed)
    with pytest.raises(LeverError, match="lies in a bundle already"):
        bundle.save(packed.parent / "other")


@pytest.mark.slow
def test_pictures_come_as_bytes_path_url_and_decoded_and_are_found_by_pixels(
    packed: Path, picture: Image.Image, tmp_path: Path
) -> None:
    selector = Selector.load(shutil.copytree(packed, tmp_path / "b"))
    demo = selector.select(question=LIKES, image=picture, shots=1)[0]
    content, path = demo.image_bytes(), demo.image_path
    assert content is not None
    assert path is not None
    assert path.endswith(".png")
    assert Path(path).read_bytes() == content
    url = "data:image/png;base64," + base64.b64encode(content).decode()
    assert demo.data_url() == url
    turns = selector.messages(question=LIKES, image=picture, shots=1)
    assert [part["type"] for part in turns[0]["content"]] == ["image_url", "text"]
    sent = turns[-1]["content"][0]["image_url"]["url"].partition(",")[2]
    with Image.open(io.BytesIO(base64.b64decode(sent))) as shown:
        assert np.array_equal(np.asarray(shown), np.asarray(picture))
    blind = {"question": LIKES, "answer": "zebra", "id": "bmp"}
    with pytest.raises(LeverError, match=r"has no picture|give each an image"):
        selector.add([blind])
    out = io.BytesIO()
    picture.save(out, "BMP")
    selector.add([{**blind, "image": out.getvalue()}])
    picks = selector.select(
        question=LIKES, image=picture, allowed=["bmp"], explain=True
    )
    assert picks.explanation is not None
    assert picks.explanation["nearest_would_show"] == ["bmp"]
    assert picks[0].image == pixel_digest(picture)
    assert str(picks[0].data_url()).startswith("data:image/bmp;base64,")


@pytest.mark.slow
def test_an_arm_of_a_run_is_packed_as_it_was_evaluated(
    tiny_run: TinyRun, picture: Image.Image, tmp_path: Path
) -> None:
    run = load_run(tiny_run.folder, at_work=False)
    vote = Selector.load(pack_run(run, tmp_path / "vote", arm="label_vote"))
    picks = vote.select(question=LIKES, image=picture)
    assert picks == []
    assert picks.answer in {item.answer for item in run.demonstrations}
    with pytest.raises(LeverError, match="never stops"):
        pack_run(run, tmp_path / "auto", arm="learned_auto")
    with pytest.raises(LeverError, match="shows at most 8 examples, not 9"):
        pack_run(run, tmp_path / "many", arm="learned", shots=9)


@pytest.mark.slow
def test_the_commands_print_one_json_object_each_and_the_card_says_figures(
    tiny_run: TinyRun,
    tmp_path: Path,
    picture: Image.Image,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    picture.save("q.png")

    def said(*words: str) -> dict[str, Any]:
        assert main([*words, "--json"]) == 0
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        return found

    run = str(tiny_run.folder)
    made = said("pack", run, "--arm", "learned", "--out", "b", "--licence", "cc-by")
    assert made["demonstrations"]["count"] == 8000
    card = Selector.load("b").card
    for text in ("license: cc-by", "Accuracy on 10 test items", "8,000 when it was"):
        assert text in card
    assert "at 1 shot: " in card
    row = {"question": LIKES, "answer": "zebra", "image": "q.png", "split": "train"}
    Path("more.jsonl").write_text(json.dumps({**row, "id": "z"}))
    added = said("demos", "add", "b", "--jsonl", "more.jsonl")
    assert (added["added"], added["already_there"]) == (["z"], [])
    assert said("demos", "add", "b", "--jsonl", "more.jsonl")["already_there"] == ["z"]
    assert said("demos", "list", "b", "--limit", "2")["count"] == 8001
    Path("allowed").write_text("z\n")
    query = ["b", "--question", LIKES, "--image", "q.png"]
    one = said("select", *query, "--allow", "allowed", "--explain")
    assert [demo["id"] for demo in one["demos"]] == ["z"]
    assert "explanation" in one
    many = said("select", "b", "--jsonl", "more.jsonl", "-k", "3")
    assert len(many["queries"][0]["demos"]) == 3
    assert said("demos", "delete", "b", "z")["count"] == 8000
    assert main(["demos", "delete", "b", "z"]) == 1
    assert "there is no demonstration z" in capsys.readouterr().err
    Path("sub").mkdir()
    Path("sub/more.jsonl").write_text(json.dumps({**row, "image": "../q.png"}))
    assert main(["demos", "add", "b", "--jsonl", "sub/more.jsonl"]) == 1
    assert "outside" in capsys.readouterr().err
    assert main(["select", "b"]) == 2
