#include "run.h"

#include <algorithm>
#include <chrono>
#include <numeric>

namespace tfn {
namespace {

using Clock = std::chrono::steady_clock;

// Whether another thread wants the caller back.
bool wakes(const Run& run) { return run.wake && __atomic_load_n(run.wake, __ATOMIC_RELAXED); }

}  // namespace

void run(Workspace& w, Batch& batch, const int32_t* tokens, const Run& run, int32_t* chosen,
         int32_t* counts) {
    const int all = batch.rows(), d = batch.model().config.d_model;
    const size_t ld = width(d);
    const auto begun = Clock::now();
    std::vector<int32_t> rows(all), next(tokens, tokens + all), best, kept, rows_left, tokens_left;
    std::vector<bool> begins;  // rows before their first token
    std::vector<uint8_t> barred(all);
    Buffer<float> allowed;  // where `end` may not be chosen
    if (run.owed && std::any_of(run.owed, run.owed + all, [](int32_t owed) { return owed > 0; }))
        allowed = batch.model().vocabulary.allowed_without(run.end);
    std::iota(rows.begin(), rows.end(), 0);
    std::fill(counts, counts + all, 0);
    for (int step = 0; step < run.steps && !rows.empty(); step++) {
        if (step && std::chrono::duration<double>(Clock::now() - begun).count() >= run.seconds)
            break;
        if (step && all - (int)rows.size() >= run.enough && wakes(run)) break;
        const int count = (int)rows.size();
        kept.clear(), rows_left.clear(), tokens_left.clear(), begins.clear();
        for (int i = 0; i < count; i++) begins.push_back(batch.position(i) == 0);
        best.resize(count);
        Wanted wanted;
        wanted.best = best.data();
        for (int i = 0; run.owed && i < count; i++) barred[i] = counts[rows[i]] < run.owed[rows[i]];
        if (allowed.data()) wanted.barred = {run.end, allowed.data(), barred.data()};
        batch.step(w, next.data(), 1, wanted);
        for (int i = 0; i < count; i++) {
            const int row = rows[i];
            const bool last = counts[row] + 1 >= run.left[row];
            int32_t token = best[i];
            if (begins[i] && run.first >= 0) token = run.first;
            else if (last && run.last >= 0) token = run.last;
            const size_t at = (size_t)row * run.steps + counts[row]++;
            chosen[at] = token;
            if (run.states) std::copy_n(w.x.data() + i * ld, d, run.states + at * d);
            if (last || token == run.end) continue;
            kept.push_back(i);
            rows_left.push_back(row);
            tokens_left.push_back(token);
        }
        if ((int)kept.size() < count) batch.select(kept.data(), (int)kept.size());
        rows.swap(rows_left);
        next.swap(tokens_left);
    }
}

}  // namespace tfn
