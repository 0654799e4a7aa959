// Sums that are rounded once, beside sums of integers.
#include "rules.h"

#include "check.h"

void check_sums(Checks& checks) {
    // Powers of two, many of them half of another's last place.
    const int powers[] = {0, 1, 2, 52, 53, 54, 55, 105, 106, 107};
    for (int seed = 0; seed < 20'000; seed++) {
        Random random(seed);
        std::vector<double> values;
        __int128 expected = 0;
        for (int i = random.between(0, 6); i; i--) {
            const __int128 value = (__int128)random.between(-3, 3) << powers[random.below(10)];
            values.push_back((double)value);
            expected += value;
        }
        checks.hold(tfn::exact_sum(values) == (double)expected, "seed " + std::to_string(seed));
    }
}
