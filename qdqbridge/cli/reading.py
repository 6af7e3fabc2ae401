"""Parameters of verbs that say how a model is read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from qdqbridge.graph.graph import Graph
from qdqbridge.report.inspection import Inspection
from qdqbridge.sources import inspect_model, is_module, load_model


@dataclass(frozen=True, slots=True)
class Rules:
    """What is rewritten beyond what keeps every bit."""

    decomposed: Annotated[
        bool, Parameter(negative=(), help="Read fake-quantization in float arithmetic as Q and DQ.")
    ] = False
    fold_affine: Annotated[
        bool,
        Parameter(
            negative=(),
            help="Fold float Mul, Add, BatchNormalization … behind integer products into these.",
        ),
    ] = False
    fuse: Annotated[
        bool,
        Parameter(
            negative=(), help="Make one operator of each activation and norm written in steps."
        ),
    ] = False

    def load(self, model: Path, params: Path | None = None) -> Graph:
        """Returns a model in canonical form; raises as :func:`qdqbridge.sources.load_model`."""
        return load_model(
            model, params=params, decomposed=self.decomposed, fold_affine=self.fold_affine,
            fuse=self.fuse,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Sources(Rules):
    """The same, and where parameters of modules are."""

    params: Annotated[
        Path | None,
        Parameter(name="--params", help="An .npz file with the parameters of a Relax module."),
    ] = None

    def read(self, model: Path) -> Graph:
        """Returns a model in canonical form; ``params`` are for modules that want them."""
        return self.load(model, self.params)

    def read_any(self, model: Path) -> Graph:
        """Returns one of several models, some of which may be no modules."""
        return self.load(model, self.params if is_module(model) else None)

    def inspect(self, model: Path) -> Inspection:
        """Returns what a model holds."""
        return inspect_model(
            model, params=self.params, decomposed=self.decomposed, fold_affine=self.fold_affine,
            fuse=self.fuse,
        )  # fmt: skip


Reading = Annotated[Sources, Parameter(name="*")]
Rewriting = Annotated[Rules, Parameter(name="*")]
AS_IT_IS = Sources()
EXACTLY = Rules()
