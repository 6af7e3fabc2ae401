"""Other people's engines as judges: what they take of a model, and what they compute from it.

An engine is opened on a model file (:func:`~qdqbridge.targets.engines.vendor.open_engine`) and has
one small protocol (:class:`~qdqbridge.targets.engines.kinds.Judge`). It runs in a process of its
own with limits, so that one that crashes or hangs takes nothing along. That process imports what it
needs: nothing is imported here. :data:`~qdqbridge.targets.engines.kinds.ENGINES` lists them.
"""
