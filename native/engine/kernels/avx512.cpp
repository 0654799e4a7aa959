// x86-64 with AVX-512 (F, BW, VL) without VNNI.
#include "avx512.h"
#include "cpu.h"

namespace tfn {
namespace {

typedef int16_t Value;  // as with AVX2
constexpr int GROUP = 2, DEPTH = GROUP, OFFSET = 0;
constexpr float STEPS = 32767;
constexpr bool SYMMETRIC = true, SLOW_SUMS = false, SUMS_OF_PAIRS = false;
typedef __m512i Weights;  // int16: 16 columns of 2

INLINE void store_values(Value* to, F v, int) {
    _mm256_storeu_si256((__m256i*)to, _mm512_cvtepi32_epi16(_mm512_cvtps_epi32((__m512)v)));
}
INLINE Weights load_weights(const int8_t* p) {
    return _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i*)p));
}
INLINE I multiply_add(I sums, Weights w, int32_t values) {
    return (I)_mm512_add_epi32((__m512i)sums, _mm512_madd_epi16(w, _mm512_set1_epi32(values)));
}

}  // namespace
}  // namespace tfn

#include "linear.inl"
#include "rows.inl"
#include "sources.inl"

namespace tfn {
namespace {
bool runs_here() { return cpu::avx512(); }
}  // namespace
DEFINE_KERNELS(avx512)
}  // namespace tfn
