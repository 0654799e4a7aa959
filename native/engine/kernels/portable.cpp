// Any machine: vectors of four floats, which every compiler knows how to take apart.
#define LANES 4
#define VECTORS 2
#define MOST_ROWS 4
#include "vectors.h"

namespace tfn {
namespace {

typedef int16_t Value;
constexpr int GROUP = 2, DEPTH = GROUP, OFFSET = 0;
constexpr float STEPS = 32767;
constexpr bool SYMMETRIC = true, SLOW_SUMS = false, SUMS_OF_PAIRS = false;
struct Weights {
    I first, second;  // of each pair
};

INLINE void store_values(Value* to, F v, int) {
    for (int i = 0; i < LANES; i++) to[i] = (Value)std::nearbyint(v[i]);
}
INLINE Weights load_weights(const int8_t* p) {
    Weights w;
    for (int i = 0; i < LANES; i++) w.first[i] = p[2 * i], w.second[i] = p[2 * i + 1];
    return w;
}
INLINE I multiply_add(I sums, Weights w, int32_t values) {
    int16_t pair[2];
    memcpy(pair, &values, 4);
    return sums + w.first * (int32_t)pair[0] + w.second * (int32_t)pair[1];
}
INLINE bool any(I lanes) { return lanes[0] | lanes[1] | lanes[2] | lanes[3]; }
INLINE bool reaches(F v, float bound) { return any(v >= bound); }
INLINE bool exceeds(F v, float bound) { return any(v > bound); }

}  // namespace
}  // namespace tfn

#include "linear.inl"
#include "rows.inl"
#include "sources.inl"

namespace tfn {
namespace {
bool runs_here() { return true; }
}  // namespace
DEFINE_KERNELS(portable)
}  // namespace tfn
