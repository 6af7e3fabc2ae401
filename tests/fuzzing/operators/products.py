"""Products of matrices."""

from __future__ import annotations

from typing import Any

from tests.fuzzing.graph_grower import Draft, Grower, Grown


def matmul(g: Grower) -> Draft | None:
    x = g.any(g.kinds_of("MatMul"), ranks=(1, 2, 3, 4))
    inner = x.shape[-1]
    if x.rank >= 2 and g.chance(0.3):
        y = g.any([x.kind], ranks=(1, 2, 3))
    else:
        lead = [g.pick(1, e) for e in x.shape[:-2]][g.pick(0, 0, 1) :] if g.chance(0.4) else []
        shape = [inner] if g.chance(0.15) else [*lead, inner, g.pick(1, 2, 4, 0, 3)]
        y = g.like_constant(x.kind, shape)
    return Draft("MatMul", [x, y])


def gemm(g: Grower) -> Draft | None:
    x = g.any(g.kinds_of("Gemm"), ranks=(2,))
    a, b = g.pick(0, 1), g.pick(0, 1)
    inner, rows, units = x.shape[0 if a else 1], x.shape[1 if a else 0], g.pick(1, 2, 3, 5)
    y = g.like_constant(x.kind, (units, inner) if b else (inner, units))
    operands: list[Grown | None] = [x, y]
    if g.b.opset < 11 or g.chance(0.7):
        shape = g.pick((units,), (1, units), (rows, 1), (rows, units), (), (1,))
        operands.append(g.like_constant(x.kind, shape))
    attributes: dict[str, Any] = {"transA": a, "transB": b}
    if g.chance(0.5):
        attributes |= {"alpha": g.pick(0.0, 0.5, 1.0, 2.0), "beta": g.pick(0.0, 1.0, 0.5, -1.0)}
    return Draft("Gemm", operands, attributes)


def einsum(g: Grower) -> Draft | None:
    if not g.has("Einsum"):
        return None
    x = g.any(g.kinds_of("Einsum"), ranks=(1, 2, 3))
    letters = "abc"[: x.rank]
    style = g.rng.random()
    if style < 0.25:
        kept = g.rng.sample(letters, g.rng.randint(0, x.rank))
        return Draft("Einsum", [x], {"equation": f"{letters}->{''.join(kept)}"})
    if style < 0.35 and x.rank >= 2:
        return Draft("Einsum", [x], {"equation": "...ab->...ba"})
    other = g.rng.sample(letters, g.rng.randint(1, x.rank)) + (["d"] if g.chance(0.6) else [])
    shape = [3 if c == "d" else x.shape["abc".index(c)] for c in other]
    y = g.like_constant(x.kind, shape)
    every = sorted({*letters, *other})
    kept = g.rng.sample(every, g.rng.randint(0, len(every)))
    return Draft("Einsum", [x, y], {"equation": f"{letters},{''.join(other)}->{''.join(kept)}"})
