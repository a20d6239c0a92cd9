"""A bundle: carries everything, chooses the same wherever it lies, takes and forgets demonstrations."""

from __future__ import annotations

import base64
import copy
import io
import json
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
from bundles import entries, ids, make_bundle, open_words, vector_of
from PIL import Image
from tiny_world import TinyRun

from leverplus.cli.main import main
from leverplus.errors import DataError, LeverError
from leverplus.selector.pack import pack_run
from leverplus.selector.selector import Selector

ASKED = "word3 thing4"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_bundle(tmp_path / "bundle")


def by_hand(question: str, count: int, skip: set[str] | None = None) -> list[str]:
    """The nearest by brute force, nearest last."""
    own = [entry for entry in entries(40) if entry.id not in (skip or set())]
    near = [float(vector_of(entry.question) @ vector_of(question)) for entry in own]
    best = sorted(range(len(own)), key=lambda row: (-near[row], row))[:count]
    return [own[row].id for row in reversed(best)]


def test_nearest_is_what_brute_force_finds(folder: Path) -> None:
    selector = open_words(folder)
    for question in (ASKED, "word11", "thing2 word9 word1"):
        assert ids(selector.select(question=question, shots=5)) == by_hand(question, 5)
    assert ids(selector.select(question=ASKED)) == by_hand(ASKED, 2), "the bundle recommends 2"
    assert selector.select(question=ASKED, shots=0) == []


def test_a_copy_chooses_the_same_and_the_original_may_be_gone(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = [demo.as_json() for demo in open_words(folder).select(question=ASKED, shots=6)]
    shutil.copytree(folder, tmp_path / "far" / "copy")
    shutil.rmtree(folder)
    monkeypatch.chdir(tmp_path / "far")
    assert [demo.as_json() for demo in open_words(Path("copy")).select(question=ASKED, shots=6)] == expected


def test_many_are_chosen_as_one_by_one(folder: Path) -> None:
    selector = open_words(folder)
    asked = [{"question": f"word{row} thing1"} for row in range(10)]
    alone = [ids(selector.select(question=row["question"], shots=3)) for row in asked]
    assert [ids(picks) for picks in selector.select_many(asked, shots=3)] == alone
    with pytest.raises(LeverError, match="query 0: there is no key 'qestion'"):
        selector.select_many([{"qestion": "a"}])
    with pytest.raises(LeverError, match="query 0: must be a mapping"):
        selector.select_many(["a"])  # type: ignore[list-item]


def test_a_filter_is_exact_by_ids_and_by_a_function(folder: Path) -> None:
    selector = open_words(folder)
    some = {f"d{row}" for row in range(0, 40, 3)}
    expected = by_hand(ASKED, 4, {f"d{row}" for row in range(40)} - some)
    assert ids(selector.select(question=ASKED, shots=4, allowed=some)) == expected
    assert ids(selector.select(question=ASKED, shots=4, allowed=lambda demo: demo.meta["part"] == "0")) == expected
    assert ids(selector.select(question=ASKED, shots=4, allowed=["d1", "gone"])) == ["d1"], "fewer where fewer may be"
    assert selector.select(question=ASKED, shots=4, allowed=[]) == []


def test_an_added_demonstration_is_there_at_once_and_after_loading(folder: Path) -> None:
    selector = open_words(folder)
    before = selector.fingerprint
    assert selector.add([{"question": ASKED, "answer": "green", "id": "mine"}]) == ["mine"]
    assert ids(selector.select(question=ASKED, shots=1)) == ["mine"]
    assert selector.fingerprint != before
    assert len(selector) == 41
    again = open_words(folder)
    assert ids(again.select(question=ASKED, shots=2)) == ids(selector.select(question=ASKED, shots=2))
    assert again.fingerprint == selector.fingerprint
    assert json.loads((folder / "bundle.json").read_text())["demonstrations"]["count"] == 41


def test_what_is_added_twice_without_an_id_is_there_once(folder: Path) -> None:
    selector = open_words(folder)
    one = selector.add([{"question": ASKED, "answer": "green"}, {"question": ASKED, "answer": "green"}])
    assert selector.add([{"question": ASKED, "answer": "green"}]) == one
    assert len(selector) == 41
    with pytest.raises(LeverError, match="there is a demonstration d3 already"):
        selector.add([{"question": "new", "answer": "a", "id": "new"}, {"question": "x", "answer": "a", "id": "d3"}])
    assert len(selector) == 41, "all or none"


def test_a_deleted_demonstration_never_comes_back(folder: Path) -> None:
    selector = open_words(folder)
    first = selector.fingerprint
    gone = selector.select(question=ASKED, shots=1)[0].id
    assert selector.delete([gone]) == 1
    for own in (selector, open_words(folder)):
        assert ids(own.select(question=ASKED, shots=5)) == by_hand(ASKED, 5, {gone})
        assert ids(own.select(question=ASKED, shots=5, allowed=[gone])) == []
    with pytest.raises(LeverError, match="there is no demonstration nobody"):
        selector.delete(["d1", "nobody"])
    assert len(selector) == 39, "all or none"
    selector.add([{"question": f"word{gone[1:]} thing{int(gone[1:]) % 7}", "answer": "other", "id": gone}])
    assert selector.select(question=ASKED, shots=1)[0].answer == "other", "its name may be used anew"
    assert selector.fingerprint != first


def test_what_was_deleted_is_not_in_the_file_any_more(folder: Path) -> None:
    selector = open_words(folder)
    selector.add([{"question": "unmistakablequestion here", "answer": "unmistakableanswer", "id": "secret"}])
    assert b"unmistakable" in (folder / "demos.sqlite").read_bytes()
    selector.delete(["secret"])
    assert b"unmistakable" not in (folder / "demos.sqlite").read_bytes()


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


def test_a_deep_copy_is_the_selector_itself_and_another_process_opens_the_folder(folder: Path) -> None:
    selector = open_words(folder)
    assert copy.deepcopy(selector) is selector
    assert copy.copy(selector) is selector
    assert pickle.loads(pickle.dumps(selector)).fingerprint == selector.fingerprint


def test_an_explanation_names_every_candidate_and_what_nearest_would_show(folder: Path) -> None:
    picks = open_words(folder).select(question=ASKED, shots=2, explain=True)
    found = picks.explanation
    assert found is not None
    assert len(found["candidates"]) == 40
    assert found["nearest_would_show"] == ids(picks)
    places = {row["id"]: row["place"] for row in found["candidates"] if row["place"]}
    assert places == {picks[0].id: 1, picks[1].id: 2}
    for row in found["candidates"]:
        near = float(vector_of(ASKED) @ vector_of(row["question"]))
        assert row["similarity"] == pytest.approx(near, abs=1e-5)
        assert row["score"] == row["similarity"]
        assert row["effect"] is None
        assert row["interaction"] is None
    shares = {row["answer"]: row["label"] for row in found["candidates"]}
    assert sum(shares.values()) == pytest.approx(1.0, abs=1e-5)
    json.dumps(found)


def test_numbers_of_demonstrations_travel_and_are_explained(tmp_path: Path) -> None:
    folder = make_bundle(tmp_path / "numbered", numbers={"effect": {"d3": 0.25, "d4": -0.5, "nobody": 1.0}})
    found = open_words(folder).select(question=ASKED, shots=1, explain=True).explanation
    assert found is not None
    assert {row["id"]: row["effect"] for row in found["candidates"] if row["effect"] is not None} == {
        "d3": 0.25, "d4": -0.5,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        ({"arm": "zero_shot", "shots": 0}, []),
        ({"arm": "fixed", "fixed": ("d5", "d9", "d2"), "shots": 3}, ["d5", "d9", "d2"]),
    ],
)
def test_training_free_ways_that_do_not_search(tmp_path: Path, plan: dict[str, object], expected: list[str]) -> None:
    selector = open_words(make_bundle(tmp_path / "b", **plan))
    assert ids(selector.select(question=ASKED)) == expected
    if expected:
        assert ids(selector.select(question=ASKED, shots=2)) == expected[1:], "those next to the query stay"
        selector.delete([expected[1]])
        assert ids(selector.select(question=ASKED)) == [expected[0], expected[2]]


@pytest.mark.parametrize("plan", [{"arm": "zero_shot"}, {"arm": "fixed", "fixed": ("d5",)}, {"arm": "random"}])
def test_what_does_not_search_needs_no_embedder(tmp_path: Path, plan: dict[str, object]) -> None:
    selector = Selector.load(make_bundle(tmp_path / "b", **plan))  # names no embedder that could be opened
    assert len(selector.select(question=ASKED, shots=1)) == (plan["arm"] != "zero_shot")
    assert len(selector.messages(question=ASKED, shots=1)) in (1, 3)


@pytest.mark.parametrize("preset", ["bi_encoder_gate", "interaction", "stopping", "parallel_slots", "volume"])
@pytest.mark.parametrize("stops", [False, True])
def test_a_learned_choice_is_the_greedy_one_of_evaluation(preset: str, stops: bool) -> None:
    import torch

    from leverplus.embedders.base import Vectors
    from leverplus.policies.build import build_policy
    from leverplus.policies.decode import greedy
    from leverplus.recipe.selection import read_selection
    from leverplus.selector.choose import AskedQuery, LearnedChooser
    from leverplus.selector.corpus import CorpusRows

    values = {"preset": preset, "query_fields": ["text"], "demo_fields": ["text", "answer"], "hidden": 16}
    config = read_selection(values, [])
    assert config is not None
    policy = build_policy(config, {"text": 16, "answer": 16}, seed=3).eval()
    own = entries(40)
    blocks = {"text": np.stack([vector_of(entry.question) for entry in own])}
    blocks["answer"] = np.stack([vector_of(entry.answers[0]) for entry in own])
    rows, learned = CorpusRows.of(blocks, 1.0), LearnedChooser(policy, 12, stops and policy.stops)
    for number in range(10):
        vector = vector_of(f"word{number} thing{number}")[None]
        asked = AskedQuery(Vectors(None, vector, np.zeros_like(vector)), rows)
        near = asked.nearest(12)[0]
        with torch.no_grad():
            picks = greedy(policy, learned.encode(asked.vectors, rows, near), 4, learned.stops).positions[0, 0].tolist()
        expected = [int(near[place]) for place in picks if place >= 0]
        assert learned.choose(asked, 4) == expected
        assert learned.judge(asked, 4).shown == expected


def test_random_draws_by_the_query_alone(tmp_path: Path) -> None:
    selector = open_words(make_bundle(tmp_path / "b", arm="random"))
    drawn = [ids(selector.select(question=f"word{row}", shots=4)) for row in range(30)]
    assert drawn == [ids(selector.select(question=f"  word{row} ", shots=4)) for row in range(30)]
    assert len({tuple(own) for own in drawn}) == 30
    assert all(len(set(own)) == 4 for own in drawn)


def test_effects_and_similarity_add_up(tmp_path: Path) -> None:
    effects = {f"d{row}": ((row * 7) % 11 - 5) / 20 for row in range(0, 40, 2)}
    ranking = {"similarity": {"text": 0.3}, "label": 0.0, "labels": None}
    folder = make_bundle(tmp_path / "b", arm="effects", ranking=ranking, numbers={"effect": effects})
    selector = open_words(folder)
    score = {}
    for entry in entries(40):
        near = float(vector_of(entry.question) @ vector_of(ASKED))
        score[entry.id] = effects.get(entry.id, 0.0) + 0.3 * near
    best = sorted(score, key=lambda name: -score[name])[:3]
    picks = selector.select(question=ASKED, shots=3, explain=True)
    assert ids(picks) == best[::-1]
    assert picks.explanation is not None
    for row in picks.explanation["candidates"]:
        assert row["score"] == pytest.approx(score[row["id"]], abs=1e-5)


def test_mmr_takes_near_ones_that_are_unlike_each_other(tmp_path: Path) -> None:
    selector = open_words(make_bundle(tmp_path / "b", arm="mmr", mmr_lambda=0.5, candidates=40))
    own = entries(40)
    vectors = np.stack([vector_of(entry.question) for entry in own]).astype(np.float64)
    near, chosen = vectors @ vector_of(ASKED).astype(np.float64), []
    for _ in range(4):
        redundancy = [max((float(vectors[row] @ vectors[other]) for other in chosen), default=0.0) for row in range(40)]
        gain = [
            -np.inf if row in chosen else 0.5 * near[row] - 0.5 * redundancy[row] if chosen else near[row]
            for row in range(40)
        ]
        chosen.append(int(np.argmax(gain)))
    assert ids(selector.select(question=ASKED, shots=4)) == [own[row].id for row in reversed(chosen)]


def test_vectors_may_be_given_instead_of_words(folder: Path) -> None:
    selector = Selector.load(folder)  # its embedder is none that could be opened
    given = {"text": 3.0 * vector_of(ASKED)}
    assert ids(selector.select(question="other words", shots=3, vectors=given)) == by_hand(ASKED, 3)
    with pytest.raises(LeverError, match="has 3 numbers; this selector takes 16 numbers"):
        selector.select(question="a", vectors={"text": [1, 2, 3]})
    with pytest.raises(LeverError, match="must hold 'text'"):
        selector.select(question="a", vectors={})


def test_a_chat_holds_demonstrations_as_turns_and_a_prompt_as_text(tmp_path: Path) -> None:
    prompt = {"form": "plain", "template": "Q: {question}\nA: {answer}\n", "instruction": "Be short."}
    selector = open_words(make_bundle(tmp_path / "b", prompt=prompt))
    one, two = selector.select(question=ASKED, shots=2)
    assert selector.messages(question=ASKED, shots=2) == [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": one.question}, {"role": "assistant", "content": one.answer},
        {"role": "user", "content": two.question}, {"role": "assistant", "content": two.answer},
        {"role": "user", "content": ASKED},
    ]  # fmt: skip
    written = f"Q: {one.question}\nA: {one.answer}\nQ: {two.question}\nA: {two.answer}\nQ: {ASKED}\nA:"
    assert selector.prompt(question=ASKED, shots=2) == f"Be short.\n{written}"


@pytest.mark.parametrize(
    ("demo", "what"),
    [
        ({"question": "a"}, "needs an answer"),
        ({"question": "a", "answer": " "}, "needs an answer"),
        ({"answer": "a"}, "the question must be a text"),
        ({"question": "a", "answer": "b", "picture": 1}, "there is no key 'picture'"),
        ({"question": "a", "answer": "b", "meta": 3}, "meta must be a mapping"),
        ({"question": "a", "answer": "b", "id": ""}, "id must be a text"),
        ({"question": "a", "answer": "b" * (1 << 21)}, "characters; at most"),
        ("a", "must be a mapping"),
    ],
)
def test_what_cannot_be_added_is_said_in_a_sentence(folder: Path, demo: object, what: str) -> None:
    with pytest.raises(LeverError, match=what):
        open_words(folder).add([demo])  # type: ignore[list-item]
    assert len(Selector.load(folder)) == 40


def test_a_bundle_that_is_not_whole_is_refused_with_the_file_named(folder: Path, tmp_path: Path) -> None:
    facts = json.loads((folder / "bundle.json").read_text())
    for number, (change, what) in enumerate(
        [({"format": 9}, "format 9"), ({"arm": "magic"}, "is not understood"), ({"shots": "2"}, "shots"),
         ({"fields": {"text": 17}}, r"shape \(40, 16\)"), ({"fields": {"smell": 1}}, "fields must be"),
         ({"arm": "learned"}, "is not there; is this a checkpoint folder")]
    ):  # fmt: skip
        other = shutil.copytree(folder, tmp_path / f"c{number}")
        (other / "bundle.json").write_text(json.dumps({**facts, **change}))
        with pytest.raises(LeverError, match=what):
            Selector.load(other)
    for name in ("demos.sqlite", "vectors.text.npy"):
        other = shutil.copytree(folder, tmp_path / f"cut-{name}")
        (other / name).write_bytes((other / name).read_bytes()[:100])
        with pytest.raises(DataError, match=name):
            Selector.load(other)


def test_vectors_are_never_unpickled(folder: Path) -> None:
    np.save(folder / "vectors.text.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match=r"vectors\.text\.npy cannot be read"):
        Selector.load(folder)


def test_a_database_that_brings_its_own_triggers_is_refused(folder: Path) -> None:
    import sqlite3

    with sqlite3.connect(folder / "demos.sqlite") as db:
        db.execute("CREATE TRIGGER t AFTER INSERT ON demos BEGIN DELETE FROM demos; END")
    db.close()
    with pytest.raises(DataError, match="is not the demonstrations of a bundle"):
        Selector.load(folder)


@pytest.fixture(scope="module")
def packed(tiny_run: TinyRun, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Selector.load(tiny_run.folder).save(tmp_path_factory.mktemp("packed") / "world")


@pytest.fixture(scope="module")
def picture(tiny_run: TinyRun) -> Image.Image:
    task = Selector.load(tiny_run.folder).run.task
    image = task.image(task.items("test")[4])
    assert image is not None
    return image


def test_a_packed_run_chooses_what_the_run_chooses(tiny_run: TinyRun, packed: Path, picture: Image.Image) -> None:
    run, bundle = Selector.load(tiny_run.folder), Selector.load(packed)
    for question in ("what does it like", "what is its favourite", "it fears what"):
        expected = run.select(question=question, image=picture, shots=4)
        chosen = bundle.select(question=question, image=picture, shots=4)
        assert ids(chosen) == ids(expected)
        for one, other in zip(chosen, expected, strict=True):
            assert np.array_equal(np.asarray(one.pil()), np.asarray(other.pil()))
    with pytest.raises(DataError, match="needs one; pass --image FILE"):
        bundle.select(question="what does it like")
    with pytest.raises(LeverError, match="needs a bundle; type `lever pack"):
        run.add([{"question": "a", "answer": "b"}])


def test_pictures_come_as_bytes_path_url_and_decoded(packed: Path, picture: Image.Image) -> None:
    selector = Selector.load(packed)
    demo = selector.select(question="what does it like", image=picture, shots=1)[0]
    content = demo.image_bytes()
    assert content is not None
    assert demo.image_path is not None
    assert Path(demo.image_path).read_bytes() == content
    assert demo.image_path.endswith(".png")
    assert demo.data_url() == "data:image/png;base64," + base64.b64encode(content).decode()
    turns = selector.messages(question="what does it like", image=picture, shots=1)
    assert [part["type"] for part in turns[0]["content"]] == ["image_url", "text"]
    sent = turns[-1]["content"][0]["image_url"]["url"].partition(",")[2]
    with Image.open(io.BytesIO(base64.b64decode(sent))) as shown:
        assert np.array_equal(np.asarray(shown), np.asarray(picture))


def test_a_picture_added_is_found_by_its_pixels(packed: Path, picture: Image.Image, tmp_path: Path) -> None:
    folder = shutil.copytree(packed, tmp_path / "b")
    selector = Selector.load(folder)
    with pytest.raises(LeverError, match="demonstration blind has none; give it an image"):
        selector.add([{"question": "what does it like", "answer": "a", "id": "blind"}])
    out = io.BytesIO()
    picture.save(out, "BMP")
    selector.add([{"question": "what does it like", "answer": "zebra", "image": out.getvalue(), "id": "bmp"}])
    found = selector.select(question="what does it like", image=picture, shots=2, explain=True).explanation
    assert found is not None
    assert found["nearest_would_show"][-1] == "bmp"
    url = next(demo for _, demo in selector.source.all() if demo.id == "bmp").data_url()
    assert url is not None
    assert url.startswith("data:image/bmp;base64,")


@pytest.mark.slow
def test_every_arm_of_a_run_can_be_packed(tiny_run: TinyRun, picture: Image.Image, tmp_path: Path) -> None:
    from leverplus.experiment.opening import load_run
    from leverplus.pools.similarity import rows

    run = load_run(tiny_run.folder)
    # the first 400 of 8,000: what an arm chooses from is not the point, and `packed` holds them all
    few = {
        "demonstrations": run.demonstrations[:400],
        "demonstration_vectors": rows(run.demonstration_vectors, slice(400)),
    }
    vars(run.parts).update(few)
    seen = {}
    for arm in ("nearest_text", "nearest_image", "nearest_both", "two_stage", "mmr", "random", "zero_shot"):
        selector = Selector.load(pack_run(run, tmp_path / arm, arm=arm))
        seen[arm] = ids(selector.select(question="what does it like", image=picture, shots=3))
    assert seen.pop("zero_shot") == []
    assert all(len(set(own)) == 3 for own in seen.values())
    assert seen["nearest_text"] != seen["nearest_image"]
    listed = [str(item.id) for item in run.demonstrations[:2]]
    fixed = Selector.load(pack_run(run, tmp_path / "fixed", arm="fixed", fixed=listed))
    assert ids(fixed.select(question="what does it like", image=picture)) == listed
    with pytest.raises(LeverError, match="shows no demonstrations, or is not known"):
        pack_run(run, tmp_path / "vote", arm="label_vote")
    with pytest.raises(LeverError, match="never stops"):
        pack_run(run, tmp_path / "auto", arm="learned_auto")


@pytest.mark.slow
def test_the_card_says_task_figures_and_licence(tiny_run: TinyRun, tmp_path: Path) -> None:
    assert (
        main(["pack", str(tiny_run.folder), "--arm", "learned", "--out", str(tmp_path / "b"), "--licence", "cc-by"])
        == 0
    )
    card = Selector.load(tmp_path / "b").card
    assert "license: cc-by" in card
    assert "Accuracy on 10 test items" in card
    assert "8,000 when it was packed" in card


def test_the_commands_print_one_json_object_each(
    tmp_path: Path, packed: Path, picture: Image.Image, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = shutil.copytree(packed, tmp_path / "b")
    picture.save(tmp_path / "q.png")

    def said(*words: str) -> dict[str, object]:
        assert main([*words, "--json"]) == 0
        found: dict[str, object] = json.loads(capsys.readouterr().out)
        return found

    rows = [{"question": "what does it like", "answer": "zebra", "image": "q.png", "id": "z", "split": "train"}]
    (tmp_path / "more.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    assert said("demos", "add", str(folder), "--jsonl", str(tmp_path / "more.jsonl"))["added"] == ["z"]
    assert said("demos", "list", str(folder), "--limit", "2")["count"] == 8001
    (tmp_path / "allowed").write_text("z\n")
    query = ["--question", "what does it like", "--image", str(tmp_path / "q.png")]
    one = said("select", str(folder), *query, "--allow", str(tmp_path / "allowed"), "--explain")
    assert [demo["id"] for demo in one["demos"]] == ["z"]
    assert "explanation" in one
    many = said("select", str(folder), "--jsonl", str(tmp_path / "more.jsonl"), "-k", "3")
    assert len(many["queries"][0]["demos"]) == 3  # type: ignore[index]
    assert said("demos", "delete", str(folder), "z")["count"] == 8000
    assert main(["demos", "delete", str(folder), "z"]) == 1
    assert "there is no demonstration z" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["select", str(folder)])


def test_the_card_says_one_shot_and_two_shots() -> None:
    from leverplus.selector import card

    row = {"baseline": "nearest_text", "shots": 1, "diff": 0.05, "ci95": [0.01, 0.09], "n": 200}
    lines = card._figures({"n": 200, "split": "test", "shots": {"1": 0.5}, "comparisons": [row, {**row, "shots": 2}]})
    said = "\n".join(lines)
    assert "nearest by text at 1 shot: +5.0 points" in said
    assert "at 2 shots: +5.0 points" in said
