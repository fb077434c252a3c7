"""The notebook runs from top to bottom, and says what it says.

`python -m tests.docs.test_notebook` runs it and writes the outputs into it.
"""

import ast
import base64
import contextlib
import io
import json
from pathlib import Path

import pytest
from PIL import Image

NOTEBOOK = Path(__file__).parents[2] / "docs" / "quickstart.ipynb"


def run(notebook):
    """Execute the code cells in order. Returns the variables, and the outputs of each cell in the notebook's format."""
    variables, outputs = {}, []
    for number, cell in enumerate(cell for cell in notebook["cells"] if cell["cell_type"] == "code"):
        tree, shown = ast.parse("".join(cell["source"]), f"cell {number}"), io.StringIO()
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        with contextlib.redirect_stdout(shown):
            exec(compile(tree, f"cell {number}", "exec"), variables)
            value = eval(compile(ast.Expression(last.value), f"cell {number}", "eval"), variables) if last else None
        outputs.append(output(shown.getvalue(), value, number + 1))
    return variables, outputs


def output(text, value, number):
    result = [{"output_type": "stream", "name": "stdout", "text": text}] if text else []
    if value is not None:
        data = {"text/plain": repr(value) if not isinstance(value, Image.Image) else "a picture"}
        if isinstance(value, Image.Image):
            jpeg = io.BytesIO()
            value.save(jpeg, "JPEG", quality=80)
            data["image/jpeg"] = base64.b64encode(jpeg.getvalue()).decode()
        result.append({"output_type": "execute_result", "execution_count": number, "metadata": {}, "data": data})
    return result


@pytest.mark.slow
def test_the_notebook_runs_from_top_to_bottom(monkeypatch):
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    variables, outputs = run(notebook)
    assert variables["answer"]["label"] in variables["model"].classes
    assert variables["share"]() > 0.5  # the new class is known
    assert variables["NEW"] in variables["loaded"].classes
    kept = [cell["outputs"] for cell in notebook["cells"] if cell["cell_type"] == "code"]
    kinds = [[list(part.get("data", {"stream": 0})) for part in cell] for cell in outputs]
    assert [[list(part.get("data", {"stream": 0})) for part in cell] for cell in kept] == kinds


def test_the_notebook_is_small_and_says_nothing_about_this_machine():
    text = NOTEBOOK.read_text(encoding="utf-8")
    assert len(text) < 100_000 and "/tmp" not in text and "Traceback" not in text


if __name__ == "__main__":
    content = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    code_cells = [cell for cell in content["cells"] if cell["cell_type"] == "code"]
    for place, (code, made) in enumerate(zip(code_cells, run(content)[1], strict=True)):
        code["outputs"], code["execution_count"] = made, place + 1
    NOTEBOOK.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
