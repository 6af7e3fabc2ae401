"""Channels-last: which values are carried so, decided once, and the graph with that carried out."""

from qdqbridge.qnn.layout.convert import ConvertedGraph, apply_layout
from qdqbridge.qnn.layout.permutation import channels_last
from qdqbridge.qnn.layout.plan import LayoutPlan, plan

__all__ = ["ConvertedGraph", "LayoutPlan", "apply_layout", "channels_last", "plan"]
