// Checks of the kernels of every instruction set that runs here.
//     kernels          all of them
//     kernels --list   their names
//     kernels NAME     that one; fails if it does not run here
//     kernels --autotuner  the autotuner of threads, which no set has a part in
//     kernels --sums   sums that are rounded once, nor have in these
//     kernels --halves  every value of 16 bits, widened and narrowed
//     kernels --all    whatever the processor says, for builds whose instructions are emulated
#include <cstring>

#include "check.h"

namespace {

bool report(const Checks& checks) {
    std::printf("%s: %d checks, %d failed\n", checks.name().c_str(), checks.count(), checks.failed());
    std::fflush(stdout);
    return !checks.failed();
}

bool check(const tfn::Kernels& kernels) {
    Checks checks(kernels.name);
    check_products(kernels, checks);
    check_dots(kernels, checks);
    check_halves(kernels, checks);
    check_quantization(kernels, checks);
    check_rows(kernels, checks);
    check_attention(kernels, checks);
    check_vocabulary(kernels, checks);
    return report(checks);
}

}  // namespace

int main(int count, char** arguments) {
    const std::string given = count > 1 ? arguments[1] : "";
    if (given == "--autotuner" || given == "--sums" || given == "--halves") {
        Checks checks(given.substr(2));
        if (given == "--autotuner") check_autotuner(checks);
        if (given == "--sums") check_sums(checks);
        if (given == "--halves") check_conversions(checks);
        return report(checks) ? 0 : 1;
    }
    bool good = true, any = false;
    for (const tfn::Kernels* const* each = tfn::all_kernels(); *each; each++) {
        const bool named = given == (*each)->name;
        if (!given.empty() && given[0] != '-' && !named) continue;
        if (given != "--all" && !(*each)->runs_here()) continue;
        any = true;
        if (given == "--list") std::printf("%s\n", (*each)->name);
        else good = check(**each) && good;
    }
    if (!any) std::printf("%s does not run here\n", given.c_str());
    return good && any ? 0 : 1;
}
