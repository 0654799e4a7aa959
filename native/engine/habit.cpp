#include "habit.h"

#include <algorithm>

namespace tfn {
namespace {

constexpr int64_t MILLISECOND = 1'000'000;
constexpr int64_t TRIAL = 3 * MILLISECOND;
constexpr int64_t SOON = 5 * MILLISECOND;  // the very first trial
constexpr int64_t FIRST = 30 * MILLISECOND, LONGEST = 1000 * MILLISECOND;  // between trials
constexpr double MEMORY = 40 * MILLISECOND;                                // of a rate
constexpr double BETTER = 1.03;  // what a change has to gain

}  // namespace

void Habit::Rate::add(double more, double in) {
    work += more;
    time += in;
    if (time > MEMORY) {
        work *= MEMORY / time;
        time = MEMORY;
    }
}

void Habit::choose_trial(bool separable) {
    if (lost_ && best_ != Way::alone) {
        tried_ = Way::alone;
    } else {  // the others by turns
        do tried_ = (Way)(((int)tried_ + WAYS - 1) % WAYS);
        while (tried_ == best_ || (tried_ == Way::apart && !separable));
    }
    lost_ = false;
}

Way Habit::begin(int64_t now, bool separable) {
    if (!next_) {
        interval_ = FIRST;
        next_ = now + SOON;
    }
    if (trial_ <= 0 && now >= next_) {
        choose_trial(separable);
        trial_ = TRIAL;
        since_ = now;
        rate(tried_) = {};
        waking_ = best_ == Way::alone;
    }
    const Way way = trial_ > 0 ? tried_ : best_;
    return way == Way::apart && !separable ? Way::together : way;
}

void Habit::end(Way way, double work, int64_t time, bool waited, int64_t now) {
    const bool skipped = waking_ && time < MILLISECOND;
    waking_ = false;
    if (!skipped) rate(way).add(work, (double)time);
    if (trial_ > 0) {
        const bool lost = way != Way::alone && waited;  // no more has to be seen
        trial_ -= lost ? trial_ : std::max<int64_t>(time, 1);
        if (trial_ > 0 || (skipped && !lost)) return;
        const bool change = !lost && rate(tried_).value() > BETTER * rate(best_).value();
        if (change) best_ = tried_;
        interval_ = change ? FIRST : std::min(2 * interval_, LONGEST);
        next_ = now + interval_;
    } else if (way != Way::alone && waited && now - since_ > FIRST / 2) {
        next_ = now;  // it may have lost its core just now
        lost_ = true;
    }
}

}  // namespace tfn
