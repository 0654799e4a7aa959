// x86-64 with AVX2 and FMA.
#include "avx2.h"
#include "cpu.h"

namespace tfn {
namespace {

// Values are int16, two of which multiply and add into 32 bits exactly. (The instruction for bytes,
// vpmaddubsw, saturates at 16 bits, and needs a second product to widen its sums.)
typedef int16_t Value;
constexpr int GROUP = 2, DEPTH = GROUP, OFFSET = 0;
constexpr float STEPS = 32767;
constexpr bool SYMMETRIC = true, SLOW_SUMS = false;
typedef __m256i Weights;  // int16: 8 columns of 2

INLINE void store_values(Value* to, F v, int) {
    __m256i whole = _mm256_cvtps_epi32((__m256)v);  // to the nearest, ties to even
    __m128i low = _mm256_castsi256_si128(whole), high = _mm256_extracti128_si256(whole, 1);
    _mm_storeu_si128((__m128i*)to, _mm_packs_epi32(low, high));
}
INLINE Weights load_weights(const int8_t* p) {
    return _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i*)p));
}
INLINE I multiply_add(I sums, Weights w, int32_t values) {
    return (I)_mm256_add_epi32((__m256i)sums, _mm256_madd_epi16(w, _mm256_set1_epi32(values)));
}

}  // namespace
}  // namespace tfn

#include "linear.inl"
#include "rows.inl"

namespace tfn {
namespace {
bool runs_here() { return cpu::avx2(); }
}  // namespace
DEFINE_KERNELS(avx2)
}  // namespace tfn
