"""What several test files on a GPU share."""

from pathlib import Path

import pytest

from tests.notebook_code import definitions

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"


@pytest.fixture(scope="session")
def cells(tmp_path_factory):
    """cells(notebook, head): what a notebook defines below these imports, by name."""

    def load(notebook, head):
        path = tmp_path_factory.mktemp("cells") / "cells.py"  # Triton reads the file
        path.write_text(f"{head}\n\n{definitions(NOTEBOOKS / notebook)}\n", encoding="utf-8")
        names = {"__name__": "cells"}
        exec(compile(path.read_text(encoding="utf-8"), path, "exec"), names)
        return names

    return load
