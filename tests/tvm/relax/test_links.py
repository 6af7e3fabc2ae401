"""Ids of tensors survive TVM's passes, and mean what they say: values are compared."""

from functools import cache
from typing import Any

import numpy as np
import pytest
import tvm as installed
from tvm import relax as installed_relax
from tvm.relax.dpl import is_op, wildcard

import qdqbridge as qb
from qdqbridge.core.graph.interpreter import evaluate
from qdqbridge.core.graph.printer import tensor_id
from qdqbridge.tvm.relax.links import STAGES, Links, Tracker, emit_linked, links_of, tracked
from tests.places import MODELS, ROOT
from tests.tvm.relax.targets import compiled

tvm: Any = installed  # TVM's annotations are narrower than what it takes
relax: Any = installed_relax
pytestmark = pytest.mark.relax
SHARED = ROOT.parent / "shared" / "models" / "pulp-platform__Deeploy"
T = relax.transform
PRODUCTS = [
    (f"x.{name}", is_op("relax.add")(is_op(f"relax.{name}")(wildcard(), wildcard()), wildcard()))
    for name in ("nn.conv2d", "matmul")
]
PATTERNS = [*PRODUCTS, ("x.relu", is_op("relax.nn.relu")(wildcard()))]
BYOC = (
    lambda: T.FuseOpsByPattern(PATTERNS, annotate_codegen=False),  # type: ignore[arg-type]
    T.MergeCompositeFunctions,
)
MORE = {
    "composites": BYOC[:1],
    "byoc": BYOC,
    "tidy": (T.CanonicalizeBindings, T.EliminateCommonSubexpr, T.DeadCodeElimination),
    "channels-last-fused": (*STAGES["channels-last"], *STAGES["fused-tir"]),
    "mixed-fused": (*STAGES["mixed"], *STAGES["fused"]),
    "byoc-legalized": (*BYOC, T.LegalizeOps),
}
PIPELINES = {**STAGES, **MORE}


NETWORKS = ("digits_cnn", "digits_attention")


@cache
def graph_of(name):
    return qb.load(MODELS / f"{name}_float.onnx")


@cache
def tracked_of(name, pipeline):
    """A network through a pipeline: nobody changes the module, or what its tracker has noted."""
    return tracked(graph_of(name), PIPELINES[pipeline])


@pytest.mark.parametrize("pipeline", PIPELINES)
@pytest.mark.parametrize("name", NETWORKS)
def test_every_call_is_linked(name, pipeline):
    _, tracker = tracked_of(name, pipeline)
    linked, calls = tracker.links.share
    assert linked == calls > 0
    for _, (done, total) in tracker.passes:
        assert done == total


@pytest.mark.corpus
@pytest.mark.parametrize("pipeline", PIPELINES)
def test_every_call_of_a_vision_transformer_is_linked(pipeline):
    files = sorted(SHARED.glob("*CCT__FP32*network.onnx"))
    if not files:
        pytest.skip("there is no such collection beside the checkout")
    _, tracker = tracked(qb.load(files[0]), PIPELINES[pipeline])
    linked, calls = tracker.links.share
    assert linked == calls > 0


@pytest.mark.parametrize("name", NETWORKS)
def test_every_fused_function_lists_its_tensors(name):
    graph, (_, tracker) = graph_of(name), tracked_of(name, "fused")
    fused = [p for p in tracker.links.places if p.is_call and p.link and p.link.relation == "holds"]
    assert fused
    by_name = {tensor_id(v) for v in graph.values() if v.constant is None}
    for place in fused:
        assert place.link is not None
        assert set(place.link.ids) <= by_name
        assert place.link.result


@pytest.mark.parametrize("name", NETWORKS)
def test_every_tensor_is_found_before_fusion(name):
    graph = graph_of(name)
    for stage in ("emitted", "legalized", "channels-last", "mixed"):
        _, tracker = tracked_of(name, stage)
        found = {
            id_
            for place in tracker.links.places
            if place.link is not None and place.link.relation == "is"
            for id_ in place.link.ids
        }
        wanted = {tensor_id(v) for node in graph.nodes for v in node.outputs}
        assert wanted <= found


# ---- what is said is true ----------------------------------------------------------------------


def _returning(module, variables):
    """The module with ``variables`` of main as its results."""
    main = T.ToNonDataflow()(module)["main"]
    names = {hash(v) for v in variables}
    pairs = zip(_variables(main), _variables(module["main"]), strict=True)
    kept = [new for new, old in pairs if hash(old) in names]
    body = relax.SeqExpr(main.body.blocks, relax.Tuple(kept))
    type_ = relax.TupleType([v.ty for v in kept])
    function = relax.Function(main.params, body, type_, attrs=main.attrs)
    result = tvm.IRModule(dict(module.functions.items()))
    result.update_func(result.get_global_var("main"), function)
    return T.Normalize()(result)


def _variables(function):
    return [b.var for block in function.body.blocks for b in block.bindings]


def _run(module, inputs):
    machine = relax.VirtualMachine(compiled(module), tvm.cpu())
    return [np.asarray(r.numpy()) for r in machine["main"](*map(tvm.runtime.tensor, inputs))]


@pytest.mark.parametrize(
    ("name", "pipeline"),
    [
        ("digits_cnn", "legalized"),
        ("digits_cnn", "channels-last"),
        ("digits_cnn", "fused-tir"),
        ("digits_cnn", "channels-last-fused"),
        ("digits_cnn", "composites"),
        ("digits_attention", "fused-tir"),
    ],
)
def test_what_is_linked_has_the_values_of_the_tensor(name, pipeline):
    graph = graph_of(name)
    module, tracker = tracked_of(name, pipeline)
    said = []
    for variable in _variables(module["main"]):
        for place in tracker.links.lookup(variable):
            link = place.link
            ids = () if link is None else link.ids if link.relation == "is" else link.result
            said += [(variable, ids)] if ids else []
    images = np.load(MODELS / "digits_test.npz")["x"][:2]
    values = {tensor_id(v): v for node in graph.nodes for v in node.outputs}
    _, real = evaluate(graph, {graph.inputs[0].name: images}, wanted=list(values.values()))
    results = _run(_returning(module, [v for v, _ in said]), [images])
    assert len(results) == len(said) > 5
    for (_, ids), result in zip(said, results, strict=True):
        for id_ in ids:
            if id_ in values:
                wanted = np.sort(real[values[id_]], axis=None)
                # TVM's float network beside ours: sums in another order, layer after layer.
                assert np.allclose(np.sort(result, axis=None), wanted, atol=1e-4)


# ---- what is not known is not guessed ----------------------------------------------------------


def test_names_within_a_shared_function_are_no_evidence():
    module, tracker = tracked_of("digits_attention", "fused")
    known = tracker.links
    shared = [p for p in known.places if p.link is not None and p.link.relation == "one of"]
    assert shared  # the network repeats itself, and fusion makes one function of equal ones
    alone = {(p.function, p.variable): p.link for p in links_of(module).places}
    for place in shared:
        link = alone[place.function, place.variable]
        assert link is None or link.relation != "is"


def test_a_foreign_module_is_unknown():
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((2, 3), "float32"))
    with builder.function("main", [x]):
        y = builder.emit(relax.op.nn.relu(x))
        builder.emit_func_output(y)
    module = builder.finalize()
    known = links_of(module)
    assert known.share == (0, 1)
    assert [place.link for place in known.lookup("x")] == [None]
    assert known.lookup("nobody") == []


def test_a_tensor_of_another_size_is_not_taken_by_its_name():
    graph = graph_of("digits_cnn")
    known = emit_linked(graph)[1]
    linked = (p for p in known.places if p.is_call and p.link is not None)
    name = next(p.variable for p in linked if p.link and p.link.relation == "is")
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((2, 3), "float32"))
    with builder.function("main", [x]):
        y = builder.emit(relax.op.nn.relu(x), name)
        builder.emit_func_output(y)
    after = links_of(builder.finalize(), known)
    assert after.share == (0, 1)


def test_spans_tell_where_names_do_not():
    module, _ = qb.to_relax(graph_of("digits_cnn"))
    linked, calls = links_of(module).share
    assert linked == calls


def test_a_tracker_follows_a_build():
    module, known = emit_linked(graph_of("digits_cnn"))
    tracker = Tracker(known)
    with tvm.transform.PassContext(opt_level=3, instruments=[tracker]):
        tvm.compile(module, "llvm")
    shares = dict(tracker.passes)
    assert shares["LegalizeOps"] == known.share
    assert isinstance(tracker.links, Links)
    done, total = tracker.passes[-1][1]
    assert done < total  # allocations and the like are unknown, and said to be


def test_lookup_of_an_expression():
    module, known = emit_linked(graph_of("digits_cnn"))
    binding = module["main"].body.blocks[0].bindings[2]
    (place,) = known.lookup(binding.value)
    assert place.variable == binding.var.name
    assert known.lookup(binding.var)[0].link == place.link
