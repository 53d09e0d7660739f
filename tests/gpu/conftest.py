"""What several test files on a GPU share."""

import ast
import json
from pathlib import Path

import pytest

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"


@pytest.fixture(scope="session")
def cells(tmp_path_factory):
    """cells(notebook, head): what a notebook defines below these imports, exercises aside, by name."""

    def load(notebook, head):
        kept = [head]
        for cell in json.loads((NOTEBOOKS / notebook).read_text(encoding="utf-8"))["cells"]:
            source = "".join(cell["source"])
            for node in ast.parse(source).body if cell["cell_type"] == "code" else ():
                defines = isinstance(node, ast.FunctionDef | ast.ClassDef)
                if defines and "..." not in ast.unparse(node):
                    first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
                    kept.append("\n".join(source.splitlines()[first - 1 : node.end_lineno]))
        path = tmp_path_factory.mktemp("cells") / "cells.py"
        path.write_text("\n\n\n".join(kept), encoding="utf-8")
        names = {"__name__": "cells"}
        exec(
            compile(path.read_text(encoding="utf-8"), path, "exec"), names
        )  # Triton reads the file
        return names

    return load
