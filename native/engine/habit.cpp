#include "habit.h"

#include <algorithm>

namespace tfn {
namespace {

constexpr int64_t MILLISECOND = 1'000'000;
constexpr int64_t TRIAL = 3 * MILLISECOND;
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

bool Habit::begin(int64_t now) {
    if (!next_) {
        interval_ = FIRST;
        next_ = now + interval_;
    }
    if (trial_ <= 0 && now >= next_) {
        trial_ = TRIAL;
        since_ = now;
        rates_[!helped_] = {};
        waking_ = !helped_;
    }
    return trial_ > 0 ? !helped_ : helped_;
}

void Habit::end(bool helped, double work, int64_t time, bool waited, int64_t now) {
    const bool skipped = waking_ && time < MILLISECOND;
    waking_ = false;
    if (!skipped) rates_[helped].add(work, (double)time);
    if (trial_ > 0) {
        const bool lost = helped && waited;  // no more has to be seen
        trial_ -= lost ? trial_ : std::max<int64_t>(time, 1);
        if (trial_ > 0 || (skipped && !lost)) return;
        const bool change = !lost && rates_[!helped_].value() > BETTER * rates_[helped_].value();
        if (change) helped_ = !helped_;
        interval_ = change ? FIRST : std::min(2 * interval_, LONGEST);
        next_ = now + interval_;
    } else if (helped && waited && now - since_ > FIRST / 2) {
        next_ = now;  // it may have lost its core just now
    }
}

}  // namespace tfn
