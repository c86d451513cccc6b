"""Files of problems, of which some are too long and some are in the evaluation set, too."""

from __future__ import annotations

import json
from pathlib import Path


def overlapping_files(folder: Path) -> list[str]:
    """Overrides that train on four problems, one long and one of the evaluation set, and evaluate on two."""

    def write(name: str, questions: list[str]) -> str:
        path = folder / name
        path.write_text("".join(json.dumps({"problem": q, "answer": "1", "solution": ""}) + "\n" for q in questions))
        return str(path)

    train = write("train.jsonl", ["Ann has 3 apples.", "short", "long " * 300, "fine"])
    test = write("test.jsonl", ["unseen", "ann has 3 apples"])
    return ["data=files", f"data.train.paths={train}", f"data.evaluation.test.paths={test}"]
