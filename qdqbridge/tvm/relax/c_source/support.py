"""The few functions that kernels in C call, each with what it stands for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from qdqbridge.tvm.relax.c_source.functions import C_TYPES, used_functions

_NEAREST = """\
/* float32 to int32, rounded half to even */
static inline int32_t qdq_nearest(float x)
{
#if defined(__arm__) && defined(__ARM_FP) && (__ARM_FP & 4)
  __asm__("vcvtr.s32.f32 %0, %0" : "+t"(x));
  int32_t whole;
  memcpy(&whole, &x, sizeof whole);
  return whole;
#elif defined(__aarch64__)
  int32_t whole;
  __asm__("fcvtns %w0, %s1" : "=r"(whole) : "w"(x));
  return whole;
#else
  const float far = x < 0.0f ? -8388608.0f : 8388608.0f; /* beyond it all are integers */
  const float whole = (x + far) - far;
  return (int32_t)((x < 0.0f ? x > far : x < far) ? whole : x);
#endif
}
"""
_DOT4 = """\
/* four products of a uint8 and an int8, the lowest bytes first, are added to a sum */
static inline int32_t qdq_dot4(int32_t sum, int32_t codes, int32_t weights)
{
#if defined(__ARM_FEATURE_DSP) && __ARM_FEATURE_DSP && defined(__arm__)
  int32_t even, odd, low, high;
  __asm__("uxtb16 %0, %1" : "=r"(even) : "r"(codes));
  __asm__("uxtb16 %0, %1, ror #8" : "=r"(odd) : "r"(codes));
  __asm__("sxtb16 %0, %1" : "=r"(low) : "r"(weights));
  __asm__("sxtb16 %0, %1, ror #8" : "=r"(high) : "r"(weights));
  __asm__("smlad %0, %1, %2, %0" : "+r"(sum) : "r"(even), "r"(low));
  __asm__("smlad %0, %1, %2, %0" : "+r"(sum) : "r"(odd), "r"(high));
  return sum;
#else
  for (int i = 0; i < 32; i += 8)
    sum += (int32_t)(uint8_t)((uint32_t)codes >> i) * (int8_t)(uint8_t)((uint32_t)weights >> i);
  return sum;
#endif
}
"""
_WORD = """\
/* four bytes, the lowest first */
static inline uint32_t qdq_word(const void *bytes)
{
  uint32_t word;
  memcpy(&word, bytes, sizeof word);
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "these sources are for little-endian processors"
#endif
  return word;
}
"""


def _bits(name: str, source: str, result: str) -> str:
    return f"""\
/* the same bits as another type */
static inline {result} {name}({source} value)
{{
  {result} bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}}
"""


def _extremes() -> Iterator[tuple[str, str]]:
    for dtype, type_ in C_TYPES.items():
        for name, sign in (("qdq_max", ">"), ("qdq_min", "<")):
            head = f"static inline {type_} {name}_{dtype}({type_} a, {type_} b)"
            yield f"{name}_{dtype}", f"{head}\n{{\n  return a {sign} b ? a : b;\n}}\n"


_SUPPORT = {
    "qdq_nearest": _NEAREST,
    "qdq_dot4": _DOT4,
    "qdq_word": _WORD,
    "qdq_bits32": _bits("qdq_bits32", "float", "uint32_t"),
    "qdq_bits64": _bits("qdq_bits64", "double", "uint64_t"),
    "qdq_float32": _bits("qdq_float32", "uint32_t", "float"),
    "qdq_float64": _bits("qdq_float64", "uint64_t", "double"),
    **dict(_extremes()),
}


def support(texts: Sequence[str]) -> str:
    """Returns the definitions of those that some bodies call."""
    used = used_functions(texts)
    return "\n".join(text for name, text in _SUPPORT.items() if name in used)
