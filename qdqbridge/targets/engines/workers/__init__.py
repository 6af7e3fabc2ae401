"""What drives an engine, a module each; only :mod:`..serve` runs them.

The class ``WORKER`` of a module has the methods: ``version()``, a text; ``load(key, file)``, that
keeps a model under a key and returns rows of :class:`~qdqbridge.targets.engines.judge.Placement`
and the
number of partitions; ``run(key, inputs, names)``, which returns arrays by name. Inputs, and outputs
among the names, come in the model's order. Where the engine tells times, ``times(key, inputs,
repeats)`` returns rows of :class:`~qdqbridge.targets.engines.judge.NodeTime`.
"""
