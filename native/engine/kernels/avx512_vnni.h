// Rows of bytes for the instruction sets whose products sum four of them.
#pragma once
#include "avx512.h"

namespace tfn {
namespace {

typedef uint8_t Value;
constexpr int GROUP = 4, OFFSET = 0;
constexpr float STEPS = 255;
constexpr bool SYMMETRIC = false, SLOW_SUMS = true, SUMS_OF_PAIRS = false;
typedef __m512i Weights;  // int8: 16 columns of 4

INLINE void store_values(Value* to, F v, int zero) {
    __m512i whole = _mm512_add_epi32(_mm512_cvtps_epi32((__m512)v), _mm512_set1_epi32(zero));
    _mm_storeu_si128((__m128i*)to, _mm512_cvtepi32_epi8(whole));
}
INLINE Weights load_weights(const int8_t* p) { return _mm512_loadu_si512(p); }
INLINE I multiply_add(I sums, Weights w, int32_t values) {
    return (I)_mm512_dpbusd_epi32((__m512i)sums, _mm512_set1_epi32(values), w);
}

}  // namespace
}  // namespace tfn
