#include "threads.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <string>

#include "problems.h"

namespace tfn {
namespace {

// Nanoseconds. A helper that finds no task for so long sleeps: longer than the caller computes
// alone between two products, so that it rarely sleeps within a step (waking takes about 50 µs).
constexpr int64_t AWAKE = 200'000;
// A caller that waits for so long yields its core, as long as waking takes.
constexpr int64_t PATIENT = 50'000;
// A caller that waits for longer than this, and than its own share took, has lost a helper: tasks
// are shorter, time slices of a scheduler longer.
constexpr int64_t LONG_WAIT = 500'000;

int64_t now() {
    using namespace std::chrono;
    return duration_cast<nanoseconds>(steady_clock::now().time_since_epoch()).count();
}

constexpr const char* VARIABLE = "TFEXPORT_NATIVE_SHARING";

inline void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

uint64_t packed(uint64_t generation, uint64_t tasks, uint64_t next) {
    return generation << 32 | tasks << 16 | next;
}

std::optional<Sharing> fixed_sharing() {
    const char* given = std::getenv(VARIABLE);
    const std::string name = given ? given : "";
    if (name.empty()) return std::nullopt;
    if (name == "serial") return Sharing::serial;
    if (name == "columns") return Sharing::columns;
    if (name == "rows") return Sharing::rows;
    throw Error(std::string(VARIABLE) + " is \"" + name +
                "\"; expected serial, columns or rows, or nothing");
}

}  // namespace

Team::Team(int threads) : threads_(threads), fixed_(fixed_sharing()) {
    try {
        for (int thread = 1; thread < threads; thread++)
            helpers_.emplace_back([this, thread] { help(thread); });
    } catch (const std::exception&) {
        // Fewer threads than wanted are as good: none waits for a certain one.
    }
}

Team::~Team() {
    {
        std::lock_guard<std::mutex> lock(mutex_);
        stop_ = true;
    }
    wake_.notify_all();
    for (auto& helper : helpers_) helper.join();
}

Team::Span::Span(Team& team, Phase phase, int rows, int separate) : team_(team) {
    if (team.helpers_.empty() || team.busy_) return;
    team.busy_ = true;
    int size = 0;
    while (size + 1 < SIZES && rows >> (size + 1)) size++;
    tuner_ = &team.tuners_[(int)phase][size];
    start_ = now();
    team.work_done_ = 0;
    team.waited_ = false;
    if (!team.fixed_)
        team.sharing_ = tuner_->begin(start_, separate >= FEWEST_ROWS * team.threads_);
    else
        team.sharing_ =
            *team.fixed_ == Sharing::rows && separate < 2 ? Sharing::columns : *team.fixed_;
    if (team.sharing_ != Sharing::serial) team.wake();
}

Team::Span::~Span() {
    if (!tuner_) return;
    const int64_t end = now();
    tuner_->end(team_.sharing_, team_.work_done_, end - start_, team_.waited_, end);
    team_.busy_ = false;
    team_.sharing_ = Sharing::serial;
    team_.needed_.store(false, std::memory_order_relaxed);
}

void Team::wake() {
    needed_.store(true);
    if (!sleeping_.load()) return;
    // A helper between its last look at `needed_` and its sleep holds the mutex.
    {
        std::lock_guard<std::mutex> lock(mutex_);
    }
    wake_.notify_all();
}

void Team::run_shared(int tasks, Function function, void* with) {
    constexpr int MOST = 1 << 15;  // at a time: the generation's neighbours in a word
    for (first_ = 0; first_ < tasks; first_ += MOST)
        run_some(std::min(MOST, tasks - first_), function, with);
}

void Team::run_some(int tasks, Function function, void* with) {
    function_ = function;
    with_ = with;
    done_.store(0, std::memory_order_relaxed);
    uint64_t generation = (work_.load(std::memory_order_relaxed) >> 32) + 1;
    work_.store(packed(generation & 0xffffffff, tasks, 0), std::memory_order_release);
    const int64_t since = now();
    while (claim(0)) {
    }
    wait_for_others(tasks, since);
}

// Do one task if there is one.
bool Team::claim(int thread) {
    uint64_t seen = work_.load(std::memory_order_acquire);
    for (;;) {
        uint64_t tasks = seen >> 16 & 0xffff, next = seen & 0xffff;
        if (next >= tasks) return false;
        if (work_.compare_exchange_weak(seen, seen + 1, std::memory_order_acq_rel)) {
            // The caller sets these anew only after this task is done.
            function_(with_, first_ + (int)next, thread);
            done_.fetch_add(1, std::memory_order_release);
            return true;
        }
    }
}

void Team::wait_for_others(int tasks, int64_t since) {
    int64_t start = 0;
    for (int spins = 1; done_.load(std::memory_order_acquire) != tasks; spins++) {
        pause();
        if (spins % 32) continue;
        const int64_t time = now();
        if (!start) start = time;
        if (time - start > PATIENT) std::this_thread::yield();
    }
    if (!start) return;
    const int64_t waited = now() - start;
    if (waited > LONG_WAIT && waited > start - since) waited_ = true;
}

void Team::help(int thread) {
    for (;;) {
        {
            std::unique_lock<std::mutex> lock(mutex_);
            sleeping_.fetch_add(1);
            wake_.wait(lock, [&] { return stop_.load() || needed_.load(); });
            sleeping_.fetch_sub(1);
        }
        if (stop_) return;
        while (work_for_a_while(thread)) std::this_thread::yield();
    }
}

// Whether there is more to be waited for.
bool Team::work_for_a_while(int thread) {
    int64_t since = 0;
    for (int spins = 1;; spins++) {
        if (claim(thread)) {
            spins = 0;
            since = 0;
            continue;
        }
        pause();
        if (spins % 32) continue;
        const int64_t time = now();
        if (!since) since = time;
        if (time - since > AWAKE) return needed_.load(std::memory_order_relaxed) && !stop_.load();
    }
}

}  // namespace tfn
