// What the instruction sets with vectors of sixteen floats share.
#pragma once
#define LANES 16
#define VECTORS 2
#define MOST_ROWS 12
#include <immintrin.h>

#include "vectors.h"

namespace tfn {
namespace {

INLINE bool reaches(F v, float bound) {
    return _mm512_cmp_ps_mask((__m512)v, _mm512_set1_ps(bound), _CMP_GE_OQ);
}
INLINE bool exceeds(F v, float bound) {
    return _mm512_cmp_ps_mask((__m512)v, _mm512_set1_ps(bound), _CMP_GT_OQ);
}
INLINE void lane_sums(const F* v, float* out) {
    __m256 halves[8], sums[4];
    for (int i = 0; i < 8; i++) {
        __m256 high = _mm256_castpd_ps(_mm512_extractf64x4_pd((__m512d)v[i], 1));
        halves[i] = _mm256_add_ps(_mm512_castps512_ps256((__m512)v[i]), high);
    }
    for (int i = 0; i < 4; i++) sums[i] = _mm256_hadd_ps(halves[2 * i], halves[2 * i + 1]);
    __m256 low = _mm256_hadd_ps(sums[0], sums[1]), high = _mm256_hadd_ps(sums[2], sums[3]);
    __m256 first = _mm256_permute2f128_ps(low, high, 0x20);
    __m256 second = _mm256_permute2f128_ps(low, high, 0x31);
    _mm256_storeu_ps(out, _mm256_add_ps(first, second));
}

}  // namespace
}  // namespace tfn
