"""The look, the static figures, and how a picture shows in a notebook."""

import os
import re
import subprocess
import sys
from itertools import combinations
from pathlib import Path
from xml.etree import ElementTree

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.text import Text

from course.draw import FLOWS, LEVELS, show, static, theme

FIGURES = Path(__file__).parent.parent / "figures"
static.load_all()

# Machado, Oliveira and Fernandes (2009), severity 1: what a dichromat sees, in linear RGB.
DICHROMATS = {
    "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216],
               [-0.003882, -0.048116, 1.051998]],
    "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413],
               [-0.011820, 0.042940, 0.968881]],
}  # fmt: skip
D65 = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def lab(linear):
    xyz = D65 @ np.clip(linear, 0, 1) / D65.sum(axis=1)
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def linear(colour):
    c = np.array(to_rgb(colour))
    return np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)


@pytest.mark.parametrize("eyes", [None, *DICHROMATS])
def test_colours_stay_apart_for_the_colour_blind(eyes):
    see = np.eye(3) if eyes is None else np.array(DICHROMATS[eyes])
    for styles in (FLOWS, LEVELS):
        for a, b in combinations(styles.values(), 2):
            apart = np.linalg.norm(lab(see @ linear(a.colour)) - lab(see @ linear(b.colour)))
            assert apart > 15, (a, b, eyes, apart)


def test_no_colour_stands_alone():
    for cue in ("marker", "dash", "hatch"):
        assert len({getattr(style, cue) for style in FLOWS.values()}) == len(FLOWS)
    chip = [LEVELS[name] for name in ("registers", "shared", "l2", "hbm")]
    lightness = [lab(linear(style.colour))[0] for style in chip]
    assert lightness == sorted(lightness, reverse=True)  # the darker, the further


def test_text_on_levels_has_contrast():
    luminance = lambda colour: D65[1] @ linear(colour)  # noqa: E731
    for style in LEVELS.values():
        low, high = sorted((luminance(style.colour), luminance(style.ink)))
        assert (high + 0.05) / (low + 0.05) > 4.5, style  # WCAG AA


def test_importing_draw_sets_the_look():
    assert mpl.rcParams["font.size"] == theme._LOOK["font.size"]


def test_a_matplotlibrc_of_the_readers_own_changes_nothing(tmp_path):  # E2
    rc = tmp_path / "matplotlibrc"
    rc.write_text(
        "text.usetex: True\nsavefig.bbox: tight\npath.sketch: 1, 100, 2\nfont.size: 40\n"
        "figure.dpi: 30\nsavefig.dpi: 30\naxes.grid: True\nsvg.fonttype: path\n",
        encoding="utf-8",
    )
    code = (
        "import hashlib, sys; from pathlib import Path\n"
        "from course import explore, hardware; from course.draw import roofline, show, static\n"
        "static.load_all(); names = sorted(static.STATIC)[:3]\n"
        "seen = [static.save(name, Path(sys.argv[1])).read_bytes() for name in names]\n"
        "seen += [show(roofline.roofline, hardware.GPUS['T4'], [])._repr_html_().encode()]\n"
        "seen += [explore.roofline().png()]\n"
        "print(*(hashlib.sha256(x).hexdigest() for x in seen))"
    )
    seen = []
    for env in ({}, {"MATPLOTLIBRC": str(rc)}):
        command, env = [sys.executable, "-c", code, str(tmp_path)], os.environ | env
        done = subprocess.run(
            command,
            cwd=FIGURES.parent,
            env=env,
            capture_output=True,
            encoding="utf-8",
        )
        assert done.returncode == 0, done.stderr
        seen.append(done.stdout.split())
    assert len(seen[0]) == 5 and seen[0] == seen[1]


def test_every_static_figure_is_kept_and_nothing_else():
    assert {path.stem for path in FIGURES.glob("*.svg")} == set(static.STATIC)


@pytest.mark.parametrize("name", sorted(static.STATIC))
def test_static_figure_redraws_byte_for_byte(name, tmp_path):
    again = static.save(name, tmp_path).read_bytes()
    assert again == (FIGURES / f"{name}.svg").read_bytes(), "run `make figures` and look at it"


@pytest.mark.parametrize("name", sorted(static.STATIC))
def test_static_figure_speaks(name):
    """A name, a role and a description for a screen reader; text that can be searched, in any font."""
    root = ElementTree.parse(FIGURES / f"{name}.svg").getroot()
    svg = "{http://www.w3.org/2000/svg}"
    title, words = root.find(f"{svg}title"), root.find(f"{svg}desc")
    assert root.get("role") == "img"
    assert root.get("aria-labelledby") == title.get("id") and len(title.text) > 10
    assert root.get("aria-describedby") == words.get("id")
    draw, size, panels = static.STATIC[name]
    figure = Figure(figsize=size, layout="constrained")
    assert words.text == draw(figure.subplots(*panels)) and words.text.startswith(title.text)
    texts = root.findall(f".//{svg}text")
    plain = "\n".join("".join(text.itertext()) for text in texts)
    for text in figure.findobj(Text):
        if (
            text.get_visible()
            and text.axes
            and text in text.axes.texts
            and "$" not in text.get_text()
        ):
            assert all(line in plain for line in text.get_text().split("\n")), text
    styles = [
        node.get("style", "") for node in root.iter() if "font-family" in node.get("style", "")
    ]
    assert styles and all(re.search(r"(sans-serif|monospace)(;|$)", style) for style in styles)


@pytest.mark.parametrize("name", sorted(static.STATIC))
def test_static_figure_is_legible(name):
    draw, size, panels = static.STATIC[name]
    figure = Figure(figsize=size, layout="constrained")
    words = draw(figure.subplots(*panels))
    assert len(words.split()) >= 5, "the text alternative says what the figure shows"
    figure.draw_without_rendering()
    width, height = figure.bbox.size
    for text in figure.findobj(Text):
        if text.get_visible() and text.get_text().strip():
            assert text.get_fontsize() >= 9, text
            box = text.get_window_extent()
            if text.axes and text.get_clip_on():
                continue
            inside = box.x0 > -2 and box.y0 > -2 and box.x1 < width + 2 and box.y1 < height + 2
            assert inside, f"{text} runs out of the figure"


def test_picture_has_its_words_as_text_alternative():
    def draw(ax, x):
        ax.plot(x)
        return 'Two points, "rising" & > 0.'

    picture = show(draw, [1, 2], size=(6, 3))
    assert repr(picture) == 'Two points, "rising" & > 0.'
    page = picture._repr_html_()
    assert 'alt="Two points, &quot;rising&quot; &amp; &gt; 0."' in page
    assert 'width="600"' in page and re.search(r"base64,[A-Za-z0-9+/=]+\"", page)
    assert "Two points" not in page.splitlines()[0]  # all that JupyterLab shows when collapsed


def test_several_panels():
    def draw(axes):
        assert len(axes) == 2
        return "Two panels."

    assert repr(show(draw, panels=(1, 2))) == "Two panels."
