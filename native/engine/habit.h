// Whether helpers pay, learnt from how fast work of a kind is done with them and without.
//
// A helper is of use while it has a core. If another process takes it away, the helper stops in the
// middle of a task and all wait; if it gets no core but the caller's, it is in the way. Neither can
// be seen beforehand, so the other way is tried now and then, for a few milliseconds, and more
// rarely the longer it stays the worse one.
#pragma once
#include <cstdint>

namespace tfn {

// Times in nanoseconds.
class Habit {
public:
    // Whether the next piece of work should have helpers.
    bool begin(int64_t now);
    // It has been done. `waited`: the caller stood still for a helper for long.
    void end(bool helped, double work, int64_t time, bool waited, int64_t now);

private:
    // Work and time, of which old ones count less and less.
    struct Rate {
        double work = 0, time = 0;
        void add(double more, double in);
        double value() const { return time > 0 ? work / time : 0; }
    };

    Rate rates_[2];        // without helpers, with them
    bool helped_ = true;   // the better way as far as is known
    bool waking_ = false;  // the trial's first piece, in which helpers may be asleep yet
    int64_t trial_ = 0;    // what is left of a trial of the other way
    int64_t next_ = 0, since_ = 0, interval_ = 0;  // of trials
};

}  // namespace tfn
