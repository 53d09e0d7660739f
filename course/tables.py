"""A table that a notebook shows as a table, and everything else as aligned text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class Table:
    """Rows under headers. A Markdown table in a notebook, aligned text elsewhere."""

    def __init__(self, headers: Sequence[str], rows: Iterable[Sequence]):
        """Each row has as many cells as there are headers; a cell may be anything printable."""
        self.headers = tuple(headers)
        self.rows = [tuple(str(cell) for cell in row) for row in rows]
        for row in self.rows:
            if len(row) != len(self.headers):
                raise ValueError(f"{len(self.headers)} headers, but a row of {len(row)}: {row}")

    def _repr_markdown_(self) -> str:
        lines = [self.headers, ["---"] * len(self.headers), *self.rows]
        return "\n".join("| " + " | ".join(c.replace("|", "\\|") for c in x) + " |" for x in lines)

    def __repr__(self) -> str:
        lines = [self.headers, *self.rows]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return "\n".join(
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
            for line in lines
        )
