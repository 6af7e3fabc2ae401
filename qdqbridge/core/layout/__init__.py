"""Layouts of the values of a graph."""

from qdqbridge.core.layout.constraints import channels_last
from qdqbridge.core.layout.conversion import ConvertedGraph, LayoutPlan, apply_layout, plan

__all__ = ["ConvertedGraph", "LayoutPlan", "apply_layout", "channels_last", "plan"]
