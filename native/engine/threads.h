// Threads that share out the tasks of one call.
//
// A task is claimed by whoever is free, so that a slow thread delays the others by one task at
// most. Helpers spin while they are needed every few microseconds, and sleep soon after. Whether
// they help at all, and with what, is measured: see "autotuner.h".
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "autotuner.h"

namespace tfn {

// Each is tuned separately.
enum class Phase { encoder, decoder, loading };

constexpr int FEWEST_ROWS =
    4;  // rows of a thread, of which fewer would waste what weights they read

class Team {
public:
    explicit Team(int threads);
    ~Team();
    Team(const Team&) = delete;
    Team& operator=(const Team&) = delete;

    int threads() const { return threads_; }

    // A span of work of a phase, such as one step of so many rows. Only in one are there helpers;
    // one within another is a part of it. `separate`: how many of its rows can be computed
    // separately.
    class Span {
    public:
        Span(Team& team, Phase phase, int rows, int separate = 0);
        ~Span();
        Span(const Span&) = delete;
        Span& operator=(const Span&) = delete;

    private:
        Team& team_;
        Autotuner* tuner_ = nullptr;
        int64_t start_ = 0;
    };

    // Whether the threads share the rows of this span.
    bool by_rows() const { return sharing_ == Sharing::rows; }
    // f(task, thread) for as many tasks as threads; `f` runs what it does with other teams, one of
    // a thread, and their work counts as this one's.
    template <class F>
    void run_by_rows(F&& f) {
        run_shared(threads_, f);
    }
    void count(Team& other) {
        work_done_ += other.work_done_;
        other.work_done_ = 0;
    }

    // f(task, thread) for every task below `tasks`. `work` in multiply-adds: little is done by the
    // caller alone. f does not throw.
    template <class F>
    void run(int tasks, double work, F&& f) {
        work_done_ += work;
        if (tasks <= 1 || work < LEAST_WORK || sharing_ == Sharing::serial) {
            for (int task = 0; task < tasks; task++) f(task, 0);
            return;
        }
        run_shared(tasks, f);
    }

private:
    using Function = void (*)(void* with, int task, int thread);
    // Multiply-adds that one thread does in about a microsecond, as long as handing tasks over
    // takes.
    static constexpr double LEAST_WORK = 60e3;
    static constexpr int PHASES = 3, SIZES = 32;

    template <class F>
    void run_shared(int tasks, F& f) {
        run_shared(
            tasks, [](void* with, int task, int thread) { (*static_cast<F*>(with))(task, thread); },
            const_cast<void*>(static_cast<const void*>(&f)));
    }
    void run_shared(int tasks, Function function, void* with);
    void run_some(int tasks, Function function, void* with);
    void wake();
    void help(int thread);
    bool work_for_a_while(int thread);
    bool claim(int thread);
    void wait_for_others(int tasks, int64_t since);

    const int threads_;
    const std::optional<Sharing> fixed_;  // for tests and measurements
    Autotuner tuners_[PHASES][SIZES];     // by the logarithm of rows
    bool busy_ = false;                   // in a span
    Sharing sharing_ = Sharing::serial;   // of this span
    bool waited_ = false;                 // long for a helper, in this span
    double work_done_ = 0;
    std::atomic<uint64_t> work_{0};  // generation (32 bits), tasks (16), next task (16)
    std::atomic<int> done_{0};
    Function function_ = nullptr;
    void* with_ = nullptr;
    int first_ = 0;  // of the tasks that `work_` counts
    std::atomic<bool> needed_{false}, stop_{false};
    std::atomic<int> sleeping_{0};
    std::mutex mutex_;
    std::condition_variable wake_;
    std::vector<std::thread> helpers_;
};

}  // namespace tfn
