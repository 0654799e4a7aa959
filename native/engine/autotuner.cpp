#include "autotuner.h"

#include <algorithm>

namespace tfn {
namespace {

constexpr int64_t MILLISECOND = 1'000'000;
// A trial is ten steps or more of a small model, or one of a large model. A kind that is half as
// fast as the best loses half of it.
constexpr int64_t TRIAL = 3 * MILLISECOND;
// The first trial starts early, because the first call of a process may last a few tens of
// milliseconds only.
constexpr int64_t SOON = 5 * MILLISECOND;
// Between trials. At first such a kind costs 5 % of the time. The interval doubles while nothing
// changes; at its longest the cost is 0.15 %, and a change of the machine is noticed within a
// second.
constexpr int64_t FIRST = 30 * MILLISECOND, LONGEST = 1000 * MILLISECOND;
// A piece may take much longer than a trial has to: a step of 32 sentences with beams takes 60 ms,
// and twice that in one thread. So intervals are at least as many times as long as the last trial.
constexpr int64_t OFTEN = 10, SELDOM = 50;
// A rate is over pieces of so long together: ten time slices of Linux's scheduler (3 to 4 ms), so
// that a piece that was interrupted once does not decide.
constexpr double MEMORY = 40 * MILLISECOND;
// What a change has to gain; less is taken for noise.
constexpr double BETTER = 1.03;

}  // namespace

void Autotuner::Rate::add(double more, double in) {
    work += more;
    time += in;
    if (time > MEMORY) {
        work *= MEMORY / time;
        time = MEMORY;
    }
}

void Autotuner::choose_trial(bool separable) {
    if (lost_ && best_ != Sharing::serial) {
        tried_ = Sharing::serial;
    } else {  // the others by turns
        do tried_ = (Sharing)(((int)tried_ + SHARINGS - 1) % SHARINGS);
        while (tried_ == best_ || (tried_ == Sharing::rows && !separable));
    }
    lost_ = false;
}

Sharing Autotuner::begin(int64_t now, bool separable) {
    if (!next_) {
        interval_ = FIRST;
        next_ = now + SOON;
    }
    if (trial_ <= 0 && now >= next_) {
        choose_trial(separable);
        trial_ = TRIAL;
        since_ = now;
        rate(tried_) = {};
        waking_ = best_ == Sharing::serial;
    }
    const Sharing chosen = trial_ > 0 ? tried_ : best_;
    return chosen == Sharing::rows && !separable ? Sharing::columns : chosen;
}

void Autotuner::end(Sharing used, double work, int64_t time, bool waited, int64_t now) {
    const bool skipped = waking_ && time < MILLISECOND;
    waking_ = false;
    if (!skipped) rate(used).add(work, (double)time);
    if (trial_ > 0) {
        const bool lost = used != Sharing::serial && waited;  // no more has to be seen
        trial_ -= lost ? trial_ : std::max<int64_t>(time, 1);
        if (trial_ > 0 || (skipped && !lost)) return;
        const bool change = !lost && rate(tried_).value() > BETTER * rate(best_).value();
        if (change) best_ = tried_;
        took_ = now - since_;
        const int64_t least = std::max(FIRST, OFTEN * took_);
        const int64_t most = std::max(LONGEST, SELDOM * took_);
        interval_ = change ? least : std::clamp(2 * interval_, least, most);
        next_ = now + interval_;
    } else if (used != Sharing::serial && waited &&
               now - since_ > std::max(FIRST / 2, OFTEN * took_)) {
        next_ = now;  // it may have lost its core just now
        lost_ = true;
    }
}

}  // namespace tfn
