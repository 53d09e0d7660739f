"""Measured results that ship with the course: one JSON file a device, one section a subject.

Every section has a "stamp": device, date, versions, method. `python -m course.records` records.
"""

import json
from pathlib import Path

HERE = Path(__file__).parent

SECTIONS = {  # name: "module:function" that measures it and returns a dict with a "stamp"
    "memory": "course.records.memory:record",
    "fusion": "course.records.fusion:record",
    "attention_bytes": "course.records.attention_bytes:record",
    "attention_speed": "course.records.attention_speed:record",
    "tile_sweep": "course.records.attention_speed:tile_sweep",
    "forward_ladder": "course.records.forward_ladder:record",
    "one_pass": "course.records.one_pass:record",
    "sanitizer": "course.records.sanitizer:record",
    "hopper_forward": "course.records.hopper_forward:record",
    "decode": "course.records.decode:record",
    "gemv": "course.records.gemv:record",
    "training": "course.records.training:record",
}


def load(name: str = "h200") -> dict:
    """All sections recorded on a device, by name."""
    path = HERE / f"{name}.json"
    if not path.exists():
        known = ", ".join(sorted(p.stem for p in HERE.glob("*.json"))) or "none yet"
        raise ValueError(f"nothing was recorded on {name!r}; recorded: {known}")
    return json.loads(path.read_text(encoding="utf-8"))


def save(sections: dict, name: str) -> Path:
    """Put sections into the file of a device and leave its other sections as they are."""
    for section, data in sections.items():
        if "stamp" not in data:
            raise ValueError(f"section {section!r} has no stamp: say where its numbers come from")
    path = HERE / f"{name}.json"
    all_sections = (load(name) if path.exists() else {}) | sections
    path.write_text(dumps(dict(sorted(all_sections.items()))) + "\n", encoding="utf-8")
    return path


def provenance(section: dict) -> str:
    """One line that says where a section's numbers come from."""
    stamp = section["stamp"]
    versions = [f"{k} {v}" for k, v in stamp["versions"].items() if k != "python"]
    parts = [stamp["device"], stamp["date"], *versions, stamp["method"]]
    return "measured on " + ", ".join(part for part in parts if part)


def file_name(device: str) -> str:
    """The name under which a device is recorded: "NVIDIA H200" is "h200"."""
    return device.removeprefix("NVIDIA ").lower().replace(" ", "_")


def dumps(value, pad: str = "") -> str:
    """JSON to be read by people: what fits on a line stands on one. Four digits a float."""
    if isinstance(value, float):
        value = float(f"{value:.4g}")
    if isinstance(value, dict):
        parts = [f"{json.dumps(key)}: {dumps(v, pad + '  ')}" for key, v in value.items()]
        ends = "{}"
    elif isinstance(value, list | tuple):
        parts, ends = [dumps(v, pad + "  ") for v in value], "[]"
    else:
        return json.dumps(value, ensure_ascii=False)
    line = ends[0] + ", ".join(parts) + ends[1]
    if len(pad) + len(line) <= 120 and "\n" not in line:
        return line
    return ends[0] + ",".join(f"\n{pad}  {part}" for part in parts) + f"\n{pad}{ends[1]}"
