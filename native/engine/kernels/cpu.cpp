#include "cpu.h"

#if defined(TFN_X86)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#elif defined(__linux__)
#include <sys/auxv.h>
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace tfn {
namespace cpu {

#if defined(TFN_X86)
namespace {

struct Registers {
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
};

Registers leaf(unsigned number, unsigned part) {
    Registers r;
    if (!__get_cpuid_count(number, part, &r.eax, &r.ebx, &r.ecx, &r.edx)) return {};
    return r;
}

bool bit(unsigned of, int number) { return of >> number & 1; }

// Registers that the operating system saves: bits of XCR0.
bool saves(unsigned states) {
    if (!bit(leaf(1, 0).ecx, 27)) return false;  // OSXSAVE
    unsigned low, high;
    asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (low & states) == states;
}

constexpr unsigned AVX = 0x6, AVX512 = 0xe6, TILES = 0x60000;

// Tiles are 8 KiB more for the kernel to save, which it does for those who ask.
bool allowed_tiles() {
#if defined(__linux__)
    constexpr int ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18;
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
#else
    return false;
#endif
}

}  // namespace

// Source for the bits: Intel's manual, volume 2A, CPUID.
bool avx2() {  // with FMA and F16C
    const unsigned found = leaf(1, 0).ecx;
    return saves(AVX) && bit(found, 12) && bit(found, 29) && bit(leaf(7, 0).ebx, 5);
}
bool avx_vnni() { return avx2() && leaf(7, 0).eax >= 1 && bit(leaf(7, 1).eax, 4); }
bool avx512() {
    const unsigned found = leaf(7, 0).ebx;
    return avx2() && saves(AVX512) && bit(found, 16) && bit(found, 30) && bit(found, 31);
}
bool avx512_vnni() { return avx512() && bit(leaf(7, 0).ecx, 11); }
bool amx() {
    const unsigned found = leaf(7, 0).edx;
    return avx512_vnni() && saves(TILES) && bit(found, 22) && bit(found, 24) && bit(found, 25) &&
           allowed_tiles();
}
#endif

bool neon_dot() {
#if defined(__aarch64__) && defined(__linux__)
    constexpr unsigned long ASIMDDP = 1 << 20;
    return getauxval(AT_HWCAP) & ASIMDDP;
#elif defined(__aarch64__) && defined(__APPLE__)
    int found = 0;
    size_t size = sizeof found;
    return !sysctlbyname("hw.optional.arm.FEAT_DotProd", &found, &size, nullptr, 0) && found;
#else
    return false;
#endif
}

}  // namespace cpu
}  // namespace tfn
