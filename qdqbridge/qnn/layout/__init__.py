"""Channels-last: which values are carried so, decided once, and the graph with that carried out."""

from qdqbridge.qnn.layout.carry import Carried, carried
from qdqbridge.qnn.layout.permutation import channels_last
from qdqbridge.qnn.layout.plan import Plan, plan

__all__ = ["Carried", "Plan", "carried", "channels_last", "plan"]
