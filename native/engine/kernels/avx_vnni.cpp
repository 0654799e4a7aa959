// x86-64 with AVX2, FMA and AVX-VNNI, as processors without AVX-512 have it.
#include "avx2.h"
#include "cpu.h"

namespace tfn {
namespace {

typedef uint8_t Value;
constexpr int GROUP = 4, DEPTH = GROUP, OFFSET = 0;
constexpr float STEPS = 255;
constexpr bool SYMMETRIC = false, SLOW_SUMS = true, SUMS_OF_PAIRS = false;
typedef __m256i Weights;  // int8: 8 columns of 4

INLINE void store_values(Value* to, F v, int zero) {
    __m256i whole = _mm256_add_epi32(_mm256_cvtps_epi32((__m256)v), _mm256_set1_epi32(zero));
    __m128i low = _mm256_castsi256_si128(whole), high = _mm256_extracti128_si256(whole, 1);
    __m128i words = _mm_packs_epi32(low, high);
    _mm_storel_epi64((__m128i*)to, _mm_packus_epi16(words, words));
}
INLINE Weights load_weights(const int8_t* p) { return _mm256_loadu_si256((const __m256i*)p); }
INLINE I multiply_add(I sums, Weights w, int32_t values) {
    return (I)_mm256_dpbusd_avx_epi32((__m256i)sums, _mm256_set1_epi32(values), w);
}

}  // namespace
}  // namespace tfn

#include "linear.inl"
#include "rows.inl"
#include "sources.inl"

namespace tfn {
namespace {
bool runs_here() { return cpu::avx_vnni(); }
}  // namespace
DEFINE_KERNELS(avx_vnni)
}  // namespace tfn
