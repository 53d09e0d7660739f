"""Figures: one theme, one function a figure, each takes an `Axes` and data, returns it in words."""

from course.draw.picture import Picture, show
from course.draw.theme import FLOWS, LEVELS, apply

apply()

__all__ = ["FLOWS", "LEVELS", "Picture", "show"]
