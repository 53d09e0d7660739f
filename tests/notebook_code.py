"""The code of a notebook, for tests that run it."""

import ast
import json

DEFINED = ast.FunctionDef, ast.ClassDef


def definitions(path, kinds=DEFINED):
    """The source of what a notebook defines at the top of its cells, exercises (`...`) aside."""
    kept = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        for node in ast.parse(source).body if cell["cell_type"] == "code" else ():
            if isinstance(node, kinds) and "..." not in ast.unparse(node):
                first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
                kept.append("\n".join(source.splitlines()[first - 1 : node.end_lineno]))
    return "\n\n\n".join(kept)
