// The choice of an instruction set: the fastest that this machine runs.
#include <cstring>

#include "kernels.h"

namespace tfn {

// Those that are built in, fastest first. See CMakeLists.txt.
#define SET(NAME) extern const Kernels NAME##_kernels;
TFN_SETS
#undef SET

const Kernels* const* all_kernels() {
#define SET(NAME) &NAME##_kernels,
    static const Kernels* const all[] = {TFN_SETS nullptr};
#undef SET
    return all;
}

const Kernels& kernels() {
    static const Kernels& chosen = []() -> const Kernels& {
        const Kernels* const* each = all_kernels();
        while (!(*each)->runs_here()) each++;  // the portable ones always do
        return **each;
    }();
    return chosen;
}

const Kernels* kernels_named(const char* name) {
    for (const Kernels* const* each = all_kernels(); *each; each++)
        if (!strcmp((*each)->name, name) && (*each)->runs_here()) return *each;
    return nullptr;
}

}  // namespace tfn
