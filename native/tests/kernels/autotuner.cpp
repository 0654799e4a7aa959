// The autotuner of threads in simulated time: each kind of sharing has a speed, which changes.
#include "autotuner.h"

#include "check.h"

using tfn::Autotuner;
using tfn::Sharing;

namespace {

constexpr int64_t MILLISECOND = 1'000'000;

struct World {
    Autotuner tuner;
    double speeds[3] = {1, 2, 3};           // work a nanosecond: serial, columns, rows
    bool separable = true, stalls = false;  // whether threads that share wait for a helper for long
    int64_t now = MILLISECOND;
    double times[3] = {};

    // Pieces of `piece` work for so many milliseconds.
    void run(int milliseconds, double piece) {
        for (double& time : times) time = 0;
        for (const int64_t end = now + milliseconds * MILLISECOND; now < end;) {
            const Sharing sharing = tuner.begin(now, separable);
            const double time = piece / speeds[(int)sharing];
            now += (int64_t)time;
            times[(int)sharing] += time;
            tuner.end(sharing, piece, (int64_t)time, stalls && sharing != Sharing::serial, now);
        }
    }
    double share(Sharing sharing) const {
        return times[(int)sharing] / (times[0] + times[1] + times[2]);
    }
};

}  // namespace

void check_autotuner(Checks& checks) {
    for (double piece : {0.1e6, 1e6, 20e6}) {
        World world;
        const std::string of = " (pieces of " + std::to_string(piece / 1e6) + " ms)";
        world.run(300, piece);
        world.run(3000, piece);
        checks.hold(world.share(Sharing::rows) > 0.9, "the best is not found" + of);
        checks.hold(world.share(Sharing::rows) < 1, "no other is tried any more" + of);
        world.speeds[(int)Sharing::columns] = 6;
        world.run(5000, piece);
        world.run(1000, piece);
        checks.hold(world.share(Sharing::columns) > 0.9,
                    "one that became the best is not found" + of);
        // A core is lost: whoever shares waits.
        world.speeds[(int)Sharing::rows] = world.speeds[(int)Sharing::columns] = 0.5;
        world.stalls = true;
        world.run(500, piece);
        world.run(3000, piece);
        checks.hold(world.share(Sharing::serial) > 0.9, "a lost core is not noticed" + of);
        // It is back.
        world.speeds[(int)Sharing::columns] = 2;
        world.speeds[(int)Sharing::rows] = 1.5;
        world.stalls = false;
        world.run(5000, piece);
        world.run(1000, piece);
        checks.hold(world.share(Sharing::columns) > 0.9, "a core that is back is not noticed" + of);
        // Rows that cannot be computed separately are not shared.
        world.separable = false;
        world.run(3000, piece);
        checks.hold(world.times[(int)Sharing::rows] == 0, "rows are shared that cannot be" + of);
    }
    // Pieces that take long are not spent on trials, nor where a helper is waited for now and then.
    for (bool stalls : {false, true}) {
        World world;
        world.speeds[(int)Sharing::rows] = 1.9;
        world.stalls = stalls;
        world.run(6000, 120e6);
        checks.hold(world.share(Sharing::columns) > 0.75,
                    "trials take " + std::to_string(1 - world.share(Sharing::columns)));
    }
}
