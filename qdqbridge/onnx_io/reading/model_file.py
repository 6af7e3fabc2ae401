"""From a path to a ModelProto whose header makes sense. External data stays on disk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError
from onnx.external_data_helper import uses_external_data

from qdqbridge.errors import InvalidModelError, ModelFileError
from qdqbridge.onnx_io.domains import ONNX_DOMAINS
from qdqbridge.onnx_io.reading.large_tensors import Bytes, read_apart

OLDEST_OPSET, OLDEST_IR = 1, 3


def read_model(path: Path) -> onnx.ModelProto:
    """Parses the file and checks its header.

    Raises:
        ModelFileError: The file is missing, empty, truncated or not ONNX.
        InvalidModelError: Its IR version or opset is one that ONNX does not have.
    """
    return _read_file_or_explain(path, lambda path: (path.read_bytes(), []))[0]


def read_model_apart(path: Path) -> tuple[onnx.ModelProto, list[Bytes]]:
    """Does the same without the bytes of large initializers, which come beside the model.

    Raises:
        ModelFileError: The file is missing, empty, truncated or not ONNX.
        InvalidModelError: Its IR version or opset is one that ONNX does not have.
    """
    return _read_file_or_explain(path, read_apart)


def has_files_beside(path: Path) -> bool:
    """True where tensors of a model are in other files, which a copy of this one would not have.

    Raises:
        ModelFileError: The file is missing, empty, truncated or not ONNX.
    """
    model, _ = read_model_apart(path)
    return any(map(uses_external_data, model.graph.initializer))


def _read_file_or_explain(
    path: Path, read: Callable[[Path], tuple[bytes, list[Bytes]]]
) -> tuple[onnx.ModelProto, list[Bytes]]:
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            raise ValueError("it is a pipe or a device, which need not end")
        data, apart = read(path)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise ModelFileError(
            "cannot read the model file",
            where=str(path),
            why=getattr(error, "strerror", None) or str(error),
            fix="check the path and its permissions",
        ) from error
    model = _parse(data, path)
    _check_header(model, path)
    return model, apart


def _parse(data: bytes, path: Path) -> onnx.ModelProto:
    if not data:
        raise ModelFileError(
            "the model file is empty",
            where=str(path),
            why="it has 0 bytes",
            fix="export or download it again",
        )
    if data.startswith(b"version https://git-lfs"):
        raise ModelFileError(
            "the file is a Git LFS pointer, not the model",
            where=str(path),
            why="it begins with 'version https://git-lfs'",
            fix="run 'git lfs pull' in the repository it comes from",
        )
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except DecodeError as error:
        raise ModelFileError(
            "the file is not an ONNX model, or it is truncated",
            where=str(path),
            why=f"protobuf cannot parse its {len(data)} bytes",
            fix="export or download it again",
        ) from error
    if not model.HasField("graph") or not model.ir_version:
        raise ModelFileError(
            "the file holds no ONNX graph",
            where=str(path),
            why="the graph or the IR version is missing",
            fix="check that this is an ONNX file, not another format renamed",
        )
    return model


def _check_header(model: onnx.ModelProto, path: Path) -> None:
    if not OLDEST_IR <= model.ir_version <= onnx.IR_VERSION:
        raise InvalidModelError(
            f"IR version {model.ir_version} is not known",
            where=str(path),
            why=f"versions {OLDEST_IR} to {onnx.IR_VERSION} exist for onnx {onnx.__version__}",
            fix="upgrade the onnx package, or export with an older one",
        )
    domains = [entry.domain for entry in model.opset_import]
    own = [node.op_type for node in model.graph.node if node.domain in ONNX_DOMAINS]
    if not domains or (own and not set(domains) & set(ONNX_DOMAINS)):
        raise InvalidModelError(
            "the model does not say which opset it uses",
            where=str(path),
            why=f"opset_import lists {domains or 'nothing'}",
            fix="add an opset_import entry for the default domain",
        )
    newest = onnx.defs.onnx_opset_version()
    opset = default_opset(model)
    if set(domains) & set(ONNX_DOMAINS) and not OLDEST_OPSET <= opset <= newest:
        raise InvalidModelError(
            f"opset {opset} is not supported",
            where=str(path),
            why=f"this reads opsets {OLDEST_OPSET} to {newest} (onnx {onnx.__version__})",
            fix="convert the model with onnx.version_converter, or upgrade the onnx package",
        )


def default_opset(model: onnx.ModelProto) -> int:
    """Returns the opset of the default domain (the newest listed, 0 if none)."""
    return max(
        (entry.version for entry in model.opset_import if entry.domain in ONNX_DOMAINS), default=0
    )
