// What the instruction sets with vectors of eight floats share.
#pragma once
#define LANES 8
#define VECTORS 2
#define MOST_ROWS 6
#include <immintrin.h>

#include "vectors.h"

namespace tfn {
namespace {

INLINE bool reaches(F v, float bound) {
    return _mm256_movemask_ps(_mm256_cmp_ps((__m256)v, _mm256_set1_ps(bound), _CMP_GE_OQ));
}
INLINE bool exceeds(F v, float bound) {
    return _mm256_movemask_ps(_mm256_cmp_ps((__m256)v, _mm256_set1_ps(bound), _CMP_GT_OQ));
}
INLINE void lane_sums(const F* v, float* out) {
    __m256 sums[4];
    for (int i = 0; i < 4; i++) sums[i] = _mm256_hadd_ps((__m256)v[2 * i], (__m256)v[2 * i + 1]);
    __m256 low = _mm256_hadd_ps(sums[0], sums[1]), high = _mm256_hadd_ps(sums[2], sums[3]);
    __m256 first = _mm256_permute2f128_ps(low, high, 0x20);
    __m256 second = _mm256_permute2f128_ps(low, high, 0x31);
    _mm256_storeu_ps(out, _mm256_add_ps(first, second));
}

}  // namespace
}  // namespace tfn
