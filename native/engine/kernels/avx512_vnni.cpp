// x86-64 with AVX-512 (F, BW, VL) and its VNNI.
#include "avx512_vnni.h"
#include "cpu.h"

namespace tfn {
namespace {
constexpr int DEPTH = GROUP;
}  // namespace
}  // namespace tfn

#include "linear.inl"
#include "rows.inl"
#include "sources.inl"

namespace tfn {
namespace {
bool runs_here() { return cpu::avx512_vnni(); }
}  // namespace
DEFINE_KERNELS(avx512_vnni)
}  // namespace tfn
