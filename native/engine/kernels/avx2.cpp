// x86-64 with AVX2 and FMA.
#include "avx2.h"
#include "cpu.h"

namespace tfn {
namespace {

// Bytes of a row times bytes of weights are added in pairs in 16 bits, and these in pairs in 32
// bits: 3 instructions for 32 products, where pairs of int16 (vpmaddwd alone) take 4. The first
// would saturate at 2 * 255 * 127; `steps_of` gives rows so few steps that no sum comes so far: 255
// for weights up to 64, which is what bundles have, and 129 for others. Two such sums are added in
// 16 bits too where these very weights leave room for it, as `pair_groups` finds: 5 instructions
// for 64 products instead of 6.
typedef uint8_t Value;
constexpr int GROUP = 4, DEPTH = GROUP, OFFSET = 0;
constexpr float STEPS = 255;
constexpr bool SYMMETRIC = false, SLOW_SUMS = false, SUMS_OF_PAIRS = true;
typedef __m256i Weights;  // int8: 8 columns of 4

INLINE void store_values(Value* to, F v, int zero) {
    __m256i whole = _mm256_add_epi32(_mm256_cvtps_epi32((__m256)v), _mm256_set1_epi32(zero));
    __m128i low = _mm256_castsi256_si128(whole), high = _mm256_extracti128_si256(whole, 1);
    __m128i words = _mm_packs_epi32(low, high);
    _mm_storel_epi64((__m128i*)to, _mm_packus_epi16(words, words));
}
INLINE Weights load_weights(const int8_t* p) { return _mm256_loadu_si256((const __m256i*)p); }
INLINE I multiply_add(I sums, Weights w, int32_t values) {
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi32(values), w);
    return (I)_mm256_add_epi32((__m256i)sums, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}

// Of both, where their sums are as small.
INLINE I multiply_add_both(I sums, Weights w, int32_t values, Weights other, int32_t others) {
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi32(values), w);
    const __m256i fours =
        _mm256_add_epi16(pairs, _mm256_maddubs_epi16(_mm256_set1_epi32(others), other));
    return (I)_mm256_add_epi32((__m256i)sums, _mm256_madd_epi16(fours, _mm256_set1_epi16(1)));
}

}  // namespace
}  // namespace tfn

#define HAS_PAIRED_GROUPS
#include "linear.inl"
#include "rows.inl"
#include "sources.inl"

namespace tfn {
namespace {
bool runs_here() { return cpu::avx2(); }
}  // namespace
DEFINE_KERNELS(avx2)
}  // namespace tfn
