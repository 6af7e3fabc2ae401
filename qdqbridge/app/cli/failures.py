"""Exit codes, and what is said on the way out.

0 done; 1 a threshold not met; 2 usage; 3 the model, the data or the target is not supported or
invalid; 70 our bug; 130 interrupted; 141 nobody reads our output any more.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import nullcontext, suppress

from cyclopts import CycloptsError, MissingArgumentError, UnusedCliTokensError
from rich.markup import escape

from qdqbridge.app.cli.output import silence, stderr
from qdqbridge.core.graph.atomic_write import fix_of
from qdqbridge.errors import QdqBridgeError

DONE, NOT_MET, USAGE, MODEL, BUG, INTERRUPTED, NO_READER = 0, 1, 2, 3, 70, 130, 141


def run(arguments: Sequence[str]) -> int:
    """Runs one command line and returns its exit code; nothing escapes but SystemExit."""
    try:
        return _run(arguments)
    except BrokenPipeError:
        silence()
        return NO_READER
    except OSError:  # not even the message can be written
        silence()
        return MODEL


def _run(arguments: Sequence[str]) -> int:
    try:
        from qdqbridge.app.cli.parameters import ALL, HELP
        from qdqbridge.app.cli.verbs import app

        everything = ALL in arguments
        asked = [*(each for each in arguments if each != ALL), *(["--help"] if everything else [])]
        with HELP.unfolded() if everything else nullcontext():
            result = app(
                asked,
                exit_on_error=False,
                print_error=False,
                result_action="return_value",
            )
        sys.stdout.flush()
    except CycloptsError as error:
        return _usage(error, arguments)
    except QdqBridgeError as error:
        show(error)
        return MODEL
    # Neither a fault of the model nor of ours: no traceback.
    except KeyboardInterrupt:
        stderr().print("interrupted", style="dim")
        return INTERRUPTED
    # An OSError too, but nobody reads any more: the caller is silent about it.
    except BrokenPipeError:
        raise
    except OSError as error:  # a full disk, a folder that cannot be written
        why = error.strerror or str(error) or type(error).__name__
        return _refused("the operating system refuses", why, fix_of(error))
    except MemoryError as error:
        return _refused(
            "there is not enough memory", str(error), "try again with smaller data or shapes"
        )
    except Exception as error:  # whatever is left is our fault, and said so
        return _bug(error)
    return result if isinstance(result, int) else DONE


def show(error: QdqBridgeError) -> None:
    """Prints an error: what failed, where, why, and how to fix it."""
    console = stderr()
    first, *rest = str(error).splitlines()
    console.print(f"[bold red]error:[/] {escape(first)}", highlight=False, soft_wrap=True)
    for line in rest:
        console.print(escape(line), highlight=False, soft_wrap=True)


def _refused(what: str, why: str, fix: str) -> int:
    with suppress(OSError):
        show(QdqBridgeError(what, why=why, fix=fix))
    silence()
    return MODEL


def _usage(error: CycloptsError, arguments: Sequence[str]) -> int:
    message = " ".join(str(error).split())
    if isinstance(error, MissingArgumentError):  # an unknown option may be what is missing
        unknown = _unknown_options(error, arguments)
        message = f"Unknown option: {', '.join(unknown)}. {message}" if unknown else message
    if isinstance(error, UnusedCliTokensError) and error.unused_tokens:
        message = f"more arguments than the command takes: {', '.join(error.unused_tokens)}"
    if isinstance(error, MissingArgumentError) and error.argument is not None:
        given = {argument.partition("=")[0] for argument in arguments}
        if not given & set(
            error.argument.names
        ):  # it is not there without its value, but not there
            message = message.replace("requires an argument", "is missing")
    chain = [name for name in error.command_chain or () if name]
    show(QdqBridgeError(message, fix=f"see '{' '.join(['qdqbridge', *chain, '--help'])}'"))
    return USAGE


def _unknown_options(error: CycloptsError, arguments: Sequence[str]) -> list[str]:
    """Returns the options among the arguments that the command does not have."""
    if error.app is None or "--" in arguments:
        return []
    taken = error.app.assemble_argument_collection()
    known = {name for argument in taken for name in (*argument.names, *argument.negatives)}
    given = (argument.partition("=")[0] for argument in arguments)
    return [name for name in given if name.startswith("--") and name not in known]


def _bug(error: Exception) -> int:
    if os.environ.get("QDQBRIDGE_DEBUG"):
        traceback.print_exc()
        return BUG
    last = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{os.path.basename(last.filename)}, line {last.lineno}"
    show(
        QdqBridgeError(
            "a bug in qdqbridge, not in your model",
            where=where,
            why=f"{type(error).__name__}: {error}",
            fix="set QDQBRIDGE_DEBUG=1 to see more, and please report it with the command",
        )
    )
    return BUG


def usage(what: str, *, fix: str = "") -> int:
    """Shows what is wrong with a command line; returns the exit code of that."""
    show(QdqBridgeError(what, fix=fix))
    return USAGE
