// What the instruction sets of 64-bit ARM share.
#pragma once
#define LANES 4
#define VECTORS 4
#define MOST_ROWS 6
#define HAS_FLOAT16
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

INLINE F load_float16(const uint16_t* p) {
    return (F)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));
}

}  // namespace
}  // namespace tfn
