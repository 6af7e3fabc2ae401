"""Which calls a node of the graph becomes, decided once for every host.

A host (Relax, Relay) derives from :class:`RuleContext` and gives the float operators and data
movement under Relax's names; everything here is written with these.
"""
