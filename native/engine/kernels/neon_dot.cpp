// 64-bit ARM with dot products of four bytes.
#include "cpu.h"
#include "neon.h"

namespace tfn {
namespace {

// The instruction takes signed bytes, so that 128 is taken from the integers of a row.
typedef int8_t Value;
constexpr int GROUP = 4, DEPTH = GROUP, OFFSET = -128;
constexpr float STEPS = 255;
constexpr bool SYMMETRIC = false, SLOW_SUMS = true, SUMS_OF_PAIRS = false;
typedef int8x16_t Weights;  // 4 columns of 4

INLINE void store_values(Value* to, F v, int zero) {
    const int32x4_t whole = vaddq_s32(vcvtnq_s32_f32((float32x4_t)v), vdupq_n_s32(zero + OFFSET));
    const int16x4_t words = vqmovn_s32(whole);
    const int8x8_t bytes = vqmovn_s16(vcombine_s16(words, words));
    memcpy(to, &bytes, LANES);
}
INLINE Weights load_weights(const int8_t* p) { return vld1q_s8(p); }
INLINE I multiply_add(I sums, Weights w, int32_t values) {
    return (I)vdotq_s32((int32x4_t)sums, w, vreinterpretq_s8_s32(vdupq_n_s32(values)));
}

}  // namespace
}  // namespace tfn

#include "linear.inl"
#include "rows.inl"
#include "sources.inl"

namespace tfn {
namespace {
bool runs_here() { return cpu::neon_dot(); }
}  // namespace
DEFINE_KERNELS(neon_dot)
}  // namespace tfn
