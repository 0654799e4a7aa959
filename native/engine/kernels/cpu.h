// What the processor has and the operating system lets a process use.
#pragma once

namespace tfn {
namespace cpu {

bool avx2();      // with FMA and F16C
bool avx_vnni();  // AVX2 and VNNI with its short encoding
bool avx512();    // F, BW and VL
bool avx512_vnni();
bool amx();  // AVX-512 with VNNI, and tiles of int8 and bfloat16; asks Linux for them
bool neon_dot();

}  // namespace cpu
}  // namespace tfn
