// WebAssembly with vectors of 128 bits.
#define LANES 4
#define VECTORS 2
#define MOST_ROWS 4
#include <wasm_simd128.h>

#include "vectors.h"

namespace tfn {
namespace {

typedef int16_t Value;  // as with AVX2: there is no product of bytes
constexpr int GROUP = 2, DEPTH = GROUP, OFFSET = 0;
constexpr float STEPS = 32767;
constexpr bool SYMMETRIC = true, SUMS_OF_PAIRS = false;
constexpr bool SLOW_SUMS = true;  // a row's value and the loop are worth sharing by several panels
typedef v128_t Weights;           // int16: 4 columns of 2

INLINE void store_values(Value* to, F v, int) {
    const v128_t whole = wasm_i32x4_trunc_sat_f32x4(wasm_f32x4_nearest((v128_t)v));  // ties to even
    wasm_v128_store64_lane(to, wasm_i16x8_narrow_i32x4(whole, whole), 0);
}
INLINE Weights load_weights(const int8_t* p) { return wasm_i16x8_load8x8(p); }
INLINE I multiply_add(I sums, Weights w, int32_t values) {
    return sums + (I)wasm_i32x4_dot_i16x8(w, wasm_i32x4_splat(values));
}
INLINE bool reaches(F v, float bound) {
    return wasm_v128_any_true(wasm_f32x4_ge((v128_t)v, wasm_f32x4_splat(bound)));
}
INLINE bool exceeds(F v, float bound) {
    return wasm_v128_any_true(wasm_f32x4_gt((v128_t)v, wasm_f32x4_splat(bound)));
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
DEFINE_KERNELS(simd128)
}  // namespace tfn
