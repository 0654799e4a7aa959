// Vectors of an instruction set, by the compiler's vector extensions. An instruction set's file
// defines LANES and VECTORS and includes this; everything is local to that file, since another
// file's code must never run with its instructions.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>

#include "kernels.h"

namespace tfn {
namespace {

constexpr int PANEL = LANES * VECTORS;
static_assert(PANEL <= MOST_PANEL && CHUNK % PANEL == 0, "a chunk is whole panels");
typedef float F __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t I __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef uint32_t U __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef uint16_t H __attribute__((vector_size(2 * LANES), aligned(2), may_alias));

INLINE F load(const float* p) { return *(const F*)p; }
INLINE void store(float* p, F v) { *(F*)p = v; }
INLINE F splat(float v) { return v - F{}; }  // v + 0 would cost an addition: -0 is not 0
INLINE F larger(F a, F b) { return a > b ? a : b; }
INLINE F smaller(F a, F b) { return a < b ? a : b; }
INLINE F absolute(F v) { return (F)((I)v & 0x7fffffff); }
INLINE F to_float(I v) { return __builtin_convertvector(v, F); }
INLINE I to_int(F v) { return __builtin_convertvector(v, I); }
INLINE I to_words(const uint16_t* p) { return __builtin_convertvector(*(const H*)p, I); }

// 0, 1, 2 and so on.
template <int... PLACE>
INLINE I places(std::integer_sequence<int, PLACE...>) {
    return I{PLACE...};
}
INLINE I places() { return places(std::make_integer_sequence<int, LANES>()); }

// Sums and maxima of a vector's lanes, by halves. A maximum is one of numbers.
template <size_t APART, size_t... I>
INLINE F exchanged(F v, std::index_sequence<I...>) {
    return __builtin_shufflevector(v, v, (I ^ APART)...);
}
template <size_t APART>  // lanes that lie so far apart change places
INLINE F exchanged(F v) {
    return exchanged<APART>(v, std::make_index_sequence<LANES>());
}
INLINE float sum(F v) {
    v += exchanged<2>(v);
    v += exchanged<1>(v);
    if constexpr (LANES > 4) v += exchanged<4 % LANES>(v);
    if constexpr (LANES > 8) v += exchanged<8 % LANES>(v);
    return v[0];
}
INLINE float highest(F v) {
    if constexpr (LANES > 8) v = larger(v, exchanged<8 % LANES>(v));
    if constexpr (LANES > 4) v = larger(v, exchanged<4 % LANES>(v));
    v = larger(v, exchanged<2>(v));
    v = larger(v, exchanged<1>(v));
    return v[0];
}

// Of each four lanes of a, two side by side from `first` on, with those of b: one by one (EACH = 1)
// or both (2).
template <int EACH, int FIRST, int... PLACE>
INLINE F merged(F a, F b, std::integer_sequence<int, PLACE...>) {
    return __builtin_shufflevector(
        a, b,
        (PLACE / 4 * 4 + FIRST + (EACH == 1 ? PLACE % 4 / 2 : PLACE % 2) +
         (EACH == 1 ? PLACE % 2 : PLACE % 4 / 2) * LANES)...);
}
// Fours of lanes of a and b, of which the even or the odd ones.
template <int ODD, int... PLACE>
INLINE F fours(F a, F b, std::integer_sequence<int, PLACE...>) {
    return __builtin_shufflevector(a, b, (PLACE / 4 * 8 + ODD * 4 + PLACE % 4)...);
}
// The lanes of each of BLOCK vectors reduced to one value, in the order of `sum`; values of several
// vectors are reduced together.
template <class Reduce>
INLINE void reduced(const F* v, float* out, Reduce&& reduce) {
    constexpr auto all = std::make_integer_sequence<int, LANES>();
    auto by_one = [&](F a, F b) {
        return reduce(merged<1, 0>(a, b, all), merged<1, 2>(a, b, all));
    };
    auto by_two = [&](F a, F b) {
        return reduce(merged<2, 0>(a, b, all), merged<2, 2>(a, b, all));
    };
    auto by_four = [&](F a, F b) { return reduce(fours<0>(a, b, all), fours<1>(a, b, all)); };
    F found[2];
    for (int i = 0; i < 2; i++, v += 4) found[i] = by_two(by_one(v[0], v[1]), by_one(v[2], v[3]));
    if constexpr (LANES > 4) found[0] = by_four(found[0], found[1]);
    if constexpr (LANES > 8) found[0] = by_four(found[0], found[0]);
    memcpy(out, found, BLOCK * sizeof(float));
}
INLINE void lane_sums(const F* v, float* out) {  // what `sum` gives of each, to the last bit
    reduced(v, out, [](F a, F b) __attribute__((always_inline)) { return a + b; });
}
INLINE void lane_maxima(const F* v, float* out) {
    reduced(v, out, [](F a, F b) __attribute__((always_inline)) { return larger(a, b); });
}

// exp(x) with a relative error of about 1e-7. Source: Cephes, expf.
INLINE F exponential(F x) {
    x = smaller(larger(x, splat(-87.3f)), splat(88.3f));
    F k = to_float(to_int(x * 1.44269504f + (x < 0.0f ? splat(-0.5f) : splat(0.5f))));
    F r = x - k * 0.693359375f;
    r = r + k * 2.12194440e-4f;
    F p = splat(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    F y = p * (r * r) + r + 1.0f;
    return y * (F)((to_int(k) + 127) << 23);
}

// Error below 1.5e-7. Source: Abramowitz and Stegun, 7.1.26.
INLINE F error_function(F x) {
    F z = absolute(x);
    F t = 1.0f / (1.0f + 0.3275911f * z);
    F p = splat(1.061405429f);
    p = p * t - 1.453152027f;
    p = p * t + 1.421413741f;
    p = p * t - 0.284496736f;
    p = p * t + 0.254829592f;
    F y = 1.0f - p * t * exponential(-z * z);
    return x < 0.0f ? -y : y;
}

INLINE F activate(Activation kind, F x) {
    switch (kind) {
        case Activation::none: return x;
        case Activation::relu: return larger(x, F{});
        case Activation::gelu: return 0.5f * x * (1.0f + error_function(x * 0.70710678f));
        case Activation::gelu_tanh:
            return x / (1.0f + exponential(-1.59576912f * (x + 0.044715f * x * x * x)));
        case Activation::quick_gelu: return x / (1.0f + exponential(-1.702f * x));
        case Activation::silu: return x / (1.0f + exponential(-x));
    }
    return x;
}

}  // namespace
}  // namespace tfn
