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

}  // namespace
}  // namespace tfn
