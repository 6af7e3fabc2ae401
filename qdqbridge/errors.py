"""The errors of qdqbridge: one small tree under :class:`QdqBridgeError`.

Every message answers four questions: what failed, where, why, and how to fix it.
"""

from __future__ import annotations

from qdqbridge.control_characters import visible


class QdqBridgeError(Exception):
    """Anything that a user's model, data or option can cause.

    Args:
        what: One line that says what could not be done.
        where: File, node and tensor concerned.
        why: The values that show the fault.
        fix: What the user can do about it.
    """

    def __init__(self, what: str, *, where: str = "", why: str = "", fix: str = "") -> None:
        self.what, self.where, self.why, self.fix = what, where, why, fix
        super().__init__(what)

    def __str__(self) -> str:
        lines = [self.what]
        for label, text in (("where", self.where), ("why", self.why), ("fix", self.fix)):
            if text:
                lines.append(f"  {label:<6} {text}")
        return visible("\n".join(lines))


class ModelFileError(QdqBridgeError):
    """The file cannot be read at all: missing, truncated, not ONNX, data outside its folder."""


class InvalidModelError(QdqBridgeError):
    """The file is ONNX but breaks ONNX's own rules."""


class ScalesError(InvalidModelError):
    """Scales or zero points that do not fit the shape of their tensor."""


class UnsupportedModelError(QdqBridgeError):
    """The model is valid, and something in it has no counterpart here."""


class UnsupportedQuantization(UnsupportedModelError):
    """A quantization encoding that has no QDQ meaning here; the message names it."""


class UnusableScaleError(UnsupportedQuantization):
    """A scale that stands for no usable real numbers: 0, infinite, NaN, subnormal."""


class UnsupportedTargetError(QdqBridgeError):
    """The graph is fine but the chosen destination (TVM, an export profile) cannot express it."""


class InputDataError(QdqBridgeError):
    """The data given to run, compare or profile does not fit the model's inputs."""


class OutputExistsError(QdqBridgeError):
    """A file would be overwritten and nobody asked for that."""


class OutputFileError(QdqBridgeError):
    """A file cannot be written: no space, no permission, a folder in its place."""


class GraphError(QdqBridgeError):
    """A graph breaks an invariant of :mod:`qdqbridge.core.graph.edit`."""
