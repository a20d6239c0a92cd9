"""`lever task check` says what it found, what is missing and where to get it."""

from __future__ import annotations

import json

from PIL import Image

from leverplus.cli.main import main
from leverplus.models.open import build_task
from leverplus.run.recipe import load_recipe
from leverplus_lab.legacy.groups import load_groups


def test_a_whole_task_is_counted(vqa_folder, capsys) -> None:
    assert (
        main(["task", "check", "okvqa", "--set", f"folder={vqa_folder}", "--json"]) == 0
    )
    found = json.loads(capsys.readouterr().out)
    assert found["splits"]["test"] == {"items": 12, "pictures": 6, "answers": 6}
    assert found["pictures_decoded"] == 18
    assert main(["task", "check", "okvqa", "--set", f"task.folder={vqa_folder}"]) == 0
    assert "all 18 pictures can be read" in capsys.readouterr().out


def test_damage_in_the_middle_of_a_picture_is_found_unless_quick(
    vqa_folder, capsys
) -> None:
    path = vqa_folder / "train2014" / "COCO_train2014_000000000105.jpg"
    Image.open(path).save(path, format="PNG")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(bytes(content))
    arguments = ["task", "check", "okvqa", "--set", f"folder={vqa_folder}"]
    assert main([*arguments, "--quick"]) == 0
    assert main(arguments) == 1
    assert "000000000105.jpg cannot be read as a picture" in capsys.readouterr().err


def test_missing_files_end_with_code_1_and_say_where_to_get_them(
    tmp_path, capsys
) -> None:
    assert main(["task", "check", "vqav2", "--set", f"folder={tmp_path}"]) == 1
    text = capsys.readouterr().err
    assert "v2_OpenEnded_mscoco_train2014_questions.json: is not in" in text
    assert "https://visualqa.org/download.html" in text
    assert "Traceback" not in text


def test_unknown_tasks_and_keys_are_answered_with_the_nearest(capsys) -> None:
    assert main(["task", "check", "okvq"]) == 1
    assert "did you mean 'okvqa'?" in capsys.readouterr().err
    assert main(["task", "check", "okvqa", "--set", "foldr=x"]) == 1
    assert "did you mean 'task.folder'?" in capsys.readouterr().err


def test_imported_files_take_the_ids_of_the_task_and_strangers_are_refused(
    vqa_folder, tmp_path, capsys
) -> None:
    path = tmp_path / "rl.json"
    rows = [{"pointer": [0, 3], "vqa_pred_answer": "x", "vqa_acc_score": 1.0}]
    path.write_text(
        json.dumps({"5": {"query": {"query_id": 5}, "pointer_candidates": rows}})
    )
    arguments = [
        "import",
        str(path),
        "--into",
        str(tmp_path / "in"),
        "--task",
        "okvqa",
        "--set",
        f"folder={vqa_folder}",
    ]
    assert main(arguments) == 0
    group = load_groups(tmp_path / "in")[0]
    assert (group.query, group.members[0].demos) == (
        "1021",
        ("1000", "1011"),
    )  # rows of the sorted question ids
    assert (
        main(
            [
                "export",
                str(tmp_path / "in"),
                "--format",
                "rl",
                "--out",
                str(tmp_path / "back.json"),
            ]
        )
        == 0
    )
    back = json.loads((tmp_path / "back.json").read_text())
    assert back.pop("_meta")["item_ids"]["5"] == "1021"
    assert back == json.loads(path.read_text())
    path.write_text(
        json.dumps({"5": {"pointer_candidates": [{**rows[0], "pointer": [0, 9000]}]}})
    )
    assert main(arguments) == 1
    assert "item 9000 is not among the known names" in capsys.readouterr().err


def test_a_recipe_names_a_task_of_files(vqa_folder) -> None:
    model = ["embed.name=clip", "score.backend=hf", "model.name=org/vlm"]
    recipe = load_recipe(
        "world", ["task.name=okvqa", f"task.folder={vqa_folder}", *model]
    )
    assert len(build_task(recipe.task).items("test")) == 12
