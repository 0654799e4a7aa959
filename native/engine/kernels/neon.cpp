// 64-bit ARM without products of bytes.
#include "neon.h"

namespace tfn {
namespace {

typedef int16_t Value;  // as with AVX2
constexpr int GROUP = 2, DEPTH = GROUP, OFFSET = 0;
constexpr float STEPS = 32767;
constexpr bool SYMMETRIC = true, SLOW_SUMS = false, SUMS_OF_PAIRS = false;
typedef int16x8_t Weights;  // 4 columns of 2

INLINE void store_values(Value* to, F v, int) {
    vst1_s16(to, vqmovn_s32(vcvtnq_s32_f32((float32x4_t)v)));  // to the nearest, ties to even
}
INLINE Weights load_weights(const int8_t* p) { return vmovl_s8(vld1_s8(p)); }
INLINE I multiply_add(I sums, Weights w, int32_t values) {
    const int16x8_t row = vreinterpretq_s16_s32(vdupq_n_s32(values));
    const int32x4_t low = vmull_s16(vget_low_s16(w), vget_low_s16(row));
    return (I)vaddq_s32((int32x4_t)sums, vpaddq_s32(low, vmull_high_s16(w, row)));
}

}  // namespace
}  // namespace tfn

#include "linear.inl"
#include "rows.inl"
#include "sources.inl"

namespace tfn {
namespace {
bool runs_here() { return true; }
}  // namespace
DEFINE_KERNELS(neon)
}  // namespace tfn
