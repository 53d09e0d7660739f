"""Draw the static figures again: `python -m course.draw [folder]`, by default figures/."""

from __future__ import annotations

import sys
from pathlib import Path

from course.draw.static import STATIC, load_all, save

if __name__ == "__main__":
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "figures")
    load_all()
    for name in sorted(STATIC):
        print(save(name, folder))
