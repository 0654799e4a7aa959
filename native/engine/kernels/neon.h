// What the instruction sets of 64-bit ARM share.
#pragma once
#define LANES 4
#define VECTORS 4
#define MOST_ROWS 6
#include <arm_neon.h>

#include "vectors.h"

namespace tfn {
namespace {

INLINE bool reaches(F v, float bound) {
    return vmaxvq_u32(vcgeq_f32((float32x4_t)v, vdupq_n_f32(bound)));
}
INLINE bool exceeds(F v, float bound) {
    return vmaxvq_u32(vcgtq_f32((float32x4_t)v, vdupq_n_f32(bound)));
}
INLINE void lane_sums(const F* v, float* out) {
    for (int i = 0; i < BLOCK; i += 4) {
        float32x4_t one = vpaddq_f32((float32x4_t)v[i], (float32x4_t)v[i + 1]);
        float32x4_t two = vpaddq_f32((float32x4_t)v[i + 2], (float32x4_t)v[i + 3]);
        vst1q_f32(out + i, vpaddq_f32(one, two));
    }
}

}  // namespace
}  // namespace tfn
