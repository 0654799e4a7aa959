// How threads best share work of a kind, learnt from how fast it is done in each way.
//
// Which way is best cannot be seen beforehand. If another process takes a helper's core away, the
// helper stops in the middle of a task and all wait. Where cores are far from one another, values that
// each makes for all cost more than weights that each reads for itself. So another way is tried now
// and then, for a few milliseconds, and more rarely the longer it stays the worse one.
#pragma once
#include <cstdint>

namespace tfn {

enum class Way {
    alone,     // the caller
    together,  // every product's columns are shared out
    apart,     // rows are shared out; each thread takes its own through all products
};
constexpr int WAYS = 3;

// Times in nanoseconds.
class Habit {
public:
    // How the next piece of work should be done; apart only if it can be.
    Way begin(int64_t now, bool separable);
    // It has been done. `waited`: the caller stood still for a helper for long.
    void end(Way way, double work, int64_t time, bool waited, int64_t now);

private:
    // Work and time, of which old ones count less and less.
    struct Rate {
        double work = 0, time = 0;
        void add(double more, double in);
        double value() const { return time > 0 ? work / time : 0; }
    };

    void choose_trial(bool separable);
    Rate& rate(Way way) { return rates_[(int)way]; }

    Rate rates_[WAYS];          // by ways
    Way best_ = Way::together;  // as far as is known
    Way tried_ = Way::alone;    // in this trial, or in the last one
    bool waking_ = false;       // the trial's first piece, in which helpers may be asleep yet
    bool lost_ = false;         // a helper, so that being alone is to be tried
    int64_t trial_ = 0;         // what is left of a trial
    int64_t next_ = 0, since_ = 0, interval_ = 0;  // of trials
};

}  // namespace tfn
