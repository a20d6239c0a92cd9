"""`lever task check` says what it found, what is missing and where to get it."""

from __future__ import annotations

import json

from PIL import Image

from leverplus.cli.main import main


def test_a_whole_task_is_counted(vqa_folder, capsys) -> None:
    assert main(["task", "check", "okvqa", "--set", f"folder={vqa_folder}", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["splits"]["test"] == {"items": 12, "pictures": 6, "answers": 6}
    assert found["pictures_decoded"] == 18
    assert main(["task", "check", "okvqa", "--set", f"task.folder={vqa_folder}"]) == 0
    assert "all 18 pictures can be read" in capsys.readouterr().out


def test_damage_in_the_middle_of_a_picture_is_found_unless_quick(vqa_folder, capsys) -> None:
    path = vqa_folder / "train2014" / "COCO_train2014_000000000105.jpg"
    Image.open(path).save(path, format="PNG")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(bytes(content))
    arguments = ["task", "check", "okvqa", "--set", f"folder={vqa_folder}"]
    assert main([*arguments, "--quick"]) == 0
    assert main(arguments) == 1
    assert "000000000105.jpg cannot be read as a picture" in capsys.readouterr().err


def test_missing_files_end_with_code_1_and_say_where_to_get_them(tmp_path, capsys) -> None:
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
