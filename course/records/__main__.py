"""`python -m course.records [section ...]`: measure on this GPU and store what was measured."""

import sys
from importlib import import_module
from time import perf_counter

from course import measure
from course.records import SECTIONS, file_name, provenance, save


def main(wanted: list[str]) -> int:
    """Record the sections named (all, if none is) and return the exit status."""
    unknown = [name for name in wanted if name not in SECTIONS]
    if unknown:
        print(f"no section {', '.join(unknown)}; there are {', '.join(SECTIONS)}")
        return 2
    if not measure.cuda_available():
        print("Nothing recorded: this needs a CUDA GPU that torch can use, and none is here.")
        return 1
    device = measure.stamp("cuda")["device"]
    failed = 0
    for name in wanted or SECTIONS:
        start = perf_counter()
        module, function = SECTIONS[name].split(":")
        try:
            section = getattr(import_module(module), function)()
            path = save({name: section}, file_name(device))
        except Exception as error:  # one section must not cost the others their results
            failed += 1
            print(f"{name}: FAILED, {type(error).__name__}: {error}", flush=True)
            continue
        seconds = perf_counter() - start
        print(f"{name}: {seconds:.0f} s, {path.name}, {provenance(section)}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
