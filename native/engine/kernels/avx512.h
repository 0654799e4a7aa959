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

}  // namespace
}  // namespace tfn
