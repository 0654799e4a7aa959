// What the instruction sets with vectors of sixteen floats share.
#pragma once
#define LANES 16
#define VECTORS 2
#define MOST_ROWS 12
#define HAS_FLOAT16
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

INLINE F load_float16(const uint16_t* p) {
    return (F)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p));
}

}  // namespace
}  // namespace tfn
