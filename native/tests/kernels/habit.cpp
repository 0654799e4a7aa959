// How threads share work is learnt, in simulated time: each way has a speed, which changes.
#include "habit.h"

#include "check.h"

using tfn::Habit;
using tfn::Way;

namespace {

constexpr int64_t MILLISECOND = 1'000'000;

struct World {
    Habit habit;
    double speeds[3] = {1, 2, 3};  // work a nanosecond: alone, together, apart
    bool separable = true, stalls = false;  // whether threads that share wait for a helper for long
    int64_t now = MILLISECOND;
    double times[3] = {};

    // Pieces of `piece` work for so many milliseconds.
    void run(int milliseconds, double piece) {
        for (double& time : times) time = 0;
        for (const int64_t end = now + milliseconds * MILLISECOND; now < end;) {
            const Way way = habit.begin(now, separable);
            const double time = piece / speeds[(int)way];
            now += (int64_t)time;
            times[(int)way] += time;
            habit.end(way, piece, (int64_t)time, stalls && way != Way::alone, now);
        }
    }
    double share(Way way) const { return times[(int)way] / (times[0] + times[1] + times[2]); }
};

}  // namespace

void check_habit(Checks& checks) {
    for (double piece : {0.1e6, 1e6, 20e6}) {
        World world;
        const std::string of = " (pieces of " + std::to_string(piece / 1e6) + " ms)";
        world.run(300, piece);
        world.run(3000, piece);
        checks.hold(world.share(Way::apart) > 0.9, "the best way is not found" + of);
        checks.hold(world.share(Way::apart) < 1, "no other way is tried any more" + of);
        world.speeds[(int)Way::together] = 6;
        world.run(5000, piece);
        world.run(1000, piece);
        checks.hold(world.share(Way::together) > 0.9, "a way that became the best is not found" + of);
        // A core is lost: whoever shares waits.
        world.speeds[(int)Way::apart] = world.speeds[(int)Way::together] = 0.5;
        world.stalls = true;
        world.run(500, piece);
        world.run(3000, piece);
        checks.hold(world.share(Way::alone) > 0.9, "a lost core is not noticed" + of);
        // It is back.
        world.speeds[(int)Way::together] = 2;
        world.speeds[(int)Way::apart] = 1.5;
        world.stalls = false;
        world.run(5000, piece);
        world.run(1000, piece);
        checks.hold(world.share(Way::together) > 0.9, "a core that is back is not noticed" + of);
        // Rows that cannot be taken apart are not.
        world.separable = false;
        world.run(3000, piece);
        checks.hold(world.times[(int)Way::apart] == 0, "rows are taken apart that cannot be" + of);
    }
}
