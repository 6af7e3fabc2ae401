"""Options of custom operators: a flat map in FlexBuffers' encoding."""

from __future__ import annotations

from typing import Any

from qdqbridge.tflite_io.conversion import UnknownForm

_MOST_OPTIONS = 1000


def root_map(data: bytes) -> dict[str, Any]:
    """Returns the numbers of a map; whatever else it holds is left out.

    Raises:
        UnknownForm: The data are no such map.
    """
    from flatbuffers import flexbuffers

    try:
        root = flexbuffers.GetRoot(bytearray(data))
        if not root.IsMap or len(root.AsMap) > _MOST_OPTIONS:
            raise UnknownForm("its options are no map, or a long one")
        found = root.AsMap
        keys, values = found.Keys, found.Values
        return {
            keys[i].AsKey: values[i].Value
            for i in range(len(found))
            if values[i].IsNumeric or values[i].IsBool
        }
    except (ValueError, IndexError, TypeError, OverflowError, UnicodeDecodeError) as error:
        # flatbuffers reads wherever the bytes point, without a check of its own
        raise UnknownForm("its options cannot be read") from error
