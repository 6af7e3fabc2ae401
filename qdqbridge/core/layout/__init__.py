"""Layouts of the values of a graph."""

from qdqbridge.core.layout.conversion import ConvertedGraph, LayoutPlan, apply_layout, plan
from qdqbridge.core.layout.permutation import channels_last

__all__ = ["ConvertedGraph", "LayoutPlan", "apply_layout", "channels_last", "plan"]
