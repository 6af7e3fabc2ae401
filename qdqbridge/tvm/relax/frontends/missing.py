"""Libraries that only the frontends need: imported when one is asked for."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from qdqbridge.errors import UnsupportedModelError


def imported(name: str, reader: str, install: str) -> Any:
    """Returns a module that is no dependency of qdqbridge.

    Args:
        name: The module.
        reader: Which function needs it.
        install: What pip installs.

    Raises:
        UnsupportedModelError: It is not installed.
    """
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise UnsupportedModelError(
            f"{reader} needs {name.partition('.')[0]}, which is not installed",
            why=str(error),
            fix=f"pip install {install}",
        ) from error
