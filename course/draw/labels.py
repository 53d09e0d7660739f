"""Labels beside the points of a plot that cover neither each other, nor points, nor lines."""

from __future__ import annotations

from functools import cache
from itertools import pairwise

import numpy as np
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextToPath

LINE = 1.2  # height of a line of text, in font sizes, as matplotlib spaces them
_ANGLES = np.radians([0, 180, 330, 150, 30, 210, 90, 270, 60, 240, 300, 120])  # the first is best
_DISTANCES = np.array([6, 11, 18, 27, 38, 52, 70])  # from the point to the label, in points
_CLEAR = 20  # points: nearer than this to another point, a label might be taken for that one's


@cache
def text_size(text: str, size: float, weight: str = "normal") -> tuple[float, float]:
    """Width and height of a text of one or more lines, in points (1/72 inch)."""
    font = FontProperties(size=size, weight=weight)
    lines = text.split("\n")
    measure = TextToPath().get_text_width_height_descent
    width = max(measure(line, font, ismath=False)[0] for line in lines)
    return width, LINE * size * len(lines)


def place(anchors, sizes, area, obstacles=()) -> np.ndarray:
    """Lower left corners of labels that lie free and near their points, shape (labels, 2).

    anchors (labels, 2) and obstacles (boxes, 4: left, bottom, right, top) in points, sizes (labels,
    2) as of `text_size`, area a box that the labels stay in. Each label in turn takes the nearest
    place that covers nothing and is not as near to another point; two more rounds let the early
    ones make room for the late ones.
    """
    anchors, sizes = np.asarray(anchors, float), np.asarray(sizes, float)
    fixed = np.asarray(obstacles, float).reshape(-1, 4)
    dots = np.concatenate([anchors - 5, anchors + 5], axis=1)
    texts = fixed[(fixed[:, 2:] - fixed[:, :2]).min(1) > 8]  # the other boxes are pieces of lines
    fixed = np.concatenate([fixed, dots])
    distance, angle = (grid.ravel() for grid in np.meshgrid(_DISTANCES, _ANGLES, indexing="ij"))
    dislike = distance / 4 + np.tile(np.arange(len(_ANGLES)), len(_DISTANCES)) / 10
    corners = np.full_like(anchors, np.inf)
    for _ in range(3):
        for i, (anchor, size) in enumerate(zip(anchors, sizes, strict=True)):
            reach = size / 2 + distance[:, None]
            centre = anchor + reach * np.stack([np.cos(angle), np.sin(angle)], axis=1)
            boxes = np.concatenate([centre - size / 2, centre + size / 2], axis=1)
            placed = [j for j in range(len(anchors)) if j != i and np.isfinite(corners[j, 0])]
            labels = np.concatenate([corners[placed], corners[placed] + sizes[placed]], axis=1)
            leads = [_lead(anchors[j], *labels[n].reshape(2, 2)) for n, j in enumerate(placed)]
            covered = _overlap(boxes, np.concatenate([fixed, labels, *leads])).sum(1)
            outside = size.prod() - _overlap(boxes, np.asarray(area, float)[None]).sum(1)
            lead = np.stack([_lead(anchor, box[:2], box[2:]) for box in boxes])
            shun = np.concatenate([texts, labels, np.delete(dots, i, axis=0)])
            crossed = _overlap(lead.reshape(-1, 4), shun).sum(1).reshape(len(boxes), -1).sum(1)
            away = _distance(boxes, anchors)
            nearest = np.delete(away, i, axis=1).min(1, initial=np.inf)
            doubtful = np.clip(_CLEAR - nearest, 0, None) * (nearest < away[:, i] + 2)
            best = np.argmin(10 * covered + 2 * crossed + 100 * outside + dislike + doubtful)
            corners[i] = boxes[best, :2]
    return corners


def _lead(anchor, low, high):
    """Small boxes along the line from a point to its label."""
    spots = anchor + np.linspace(0.1, 1, 8)[:, None] * (np.clip(anchor, low, high) - anchor)
    return np.concatenate([spots - 1, spots + 1], axis=1)


def _distance(boxes, points):
    """From each box to each point, shape (boxes, points)."""
    nearest = np.clip(points[None], boxes[:, None, :2], boxes[:, None, 2:])
    return np.hypot(*np.moveaxis(nearest - points[None], -1, 0))


def _overlap(boxes, others):
    """Area that each box shares with each of the others, shape (boxes, others)."""
    low = np.maximum(boxes[:, None, :2], others[None, :, :2])
    high = np.minimum(boxes[:, None, 2:], others[None, :, 2:])
    return np.clip(high - low, 0, None).prod(-1)


def along(line, thickness: float = 3, step: float = 4) -> np.ndarray:
    """Small boxes along a line of (x, y) corners, to keep labels off it; all in points."""
    line = np.asarray(line, float)
    boxes = []
    for start, end in pairwise(line):
        count = max(2, int(np.hypot(*(end - start)) / step))
        spots = start + np.linspace(0, 1, count)[:, None] * (end - start)
        boxes.append(np.concatenate([spots - thickness / 2, spots + thickness / 2], axis=1))
    return np.concatenate(boxes)
