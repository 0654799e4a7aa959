// Which kind of sharing is fastest for threads, measured while they work.
//
// It cannot be known beforehand. If another process takes a helper's core away, the helper stops in
// the middle of a task and all wait. Where cores are far from one another, values that each makes
// for all cost more than weights that each reads for itself. So the other kinds are tried now and
// then, for a few milliseconds, and more rarely the longer they stay slower.
#pragma once
#include <cstdint>

namespace tfn {

enum class Sharing {
    serial,   // the caller computes all
    columns,  // threads share the columns of every product
    rows,     // threads share the rows of a batch; each takes its own through all products
};
constexpr int SHARINGS = 3;

// Times in nanoseconds.
class Autotuner {
public:
    // What to use for the next piece of work; rows only if it is separable.
    Sharing begin(int64_t now, bool separable);
    // The piece has ended. `waited`: the caller waited for a helper for long.
    void end(Sharing used, double work, int64_t time, bool waited, int64_t now);

private:
    // Work and time, of which old ones count less and less.
    struct Rate {
        double work = 0, time = 0;
        void add(double more, double in);
        double value() const { return time > 0 ? work / time : 0; }
    };

    void choose_trial(bool separable);
    Rate& rate(Sharing sharing) { return rates_[(int)sharing]; }

    Rate rates_[SHARINGS];
    Sharing best_ = Sharing::columns;  // as far as is known
    Sharing tried_ = Sharing::serial;  // in this trial, or in the last one
    bool waking_ = false;              // the trial's first piece: helpers may be asleep yet
    bool lost_ = false;                // a helper was: serial is tried next
    int64_t trial_ = 0;                // what is left of a trial
    int64_t next_ = 0, since_ = 0, interval_ = 0;  // of trials
    int64_t took_ = 0;                             // the last one
};

}  // namespace tfn
