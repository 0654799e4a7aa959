// What the instruction sets with vectors of eight floats share.
#pragma once
#define LANES 8
#define VECTORS 2
#define MOST_ROWS 6
#define HAS_FLOAT16
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

INLINE F load_float16(const uint16_t* p) {
    return (F)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p));
}

}  // namespace
}  // namespace tfn
