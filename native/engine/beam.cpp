#include <algorithm>
#include <cmath>
#include <numeric>

#include "search.h"

namespace tfn {
namespace {

struct Candidate {
    int32_t token;
    int parent;
    float log_prob;
    double total;
};

// A sentence that is still searched, and its hypotheses.
struct Sentence {
    int number = 0, finished = 0;
    std::vector<double> sums;
};

// The best of a row's tokens, ties by the lower id. `values` and `ids` have room for `count`.
void candidates_of(const Kernels& kernels, const float* logits, int size, double sum, int parent,
                   int count, float* values, int32_t* ids, Candidate* out) {
    kernels.top(logits, size, count, values, ids);
    const double all = kernels.log_sum_exp(logits, size);
    for (int i = 0; i < count; i++) {
        const float log_prob = values[i] - (float)all;
        const double total = sum + log_prob;
        // Not a number is in no order.
        out[i] = {ids[i], parent, log_prob, std::isnan(total) ? -INFINITY : total};
    }
}

class Search {
public:
    Search(Batch& batch, int count, int beams, int enough, const BeamRecord& record)
        : batch_(batch), config_(batch.model().config), count_(count), beams_(beams),
          enough_(enough), record_(record), running_(count), tokens_(count, config_.start_id) {
        for (int i = 0; i < count; i++) running_[i] = {i, 0, {0.0}};
    }
    bool active() const { return !running_.empty(); }

    void step(Workspace& w, int number) {
        const int rows = batch_.rows(), size = config_.target_vocab_size, many = 2 * beams_;
        Team::Span span(w.team, Work::decoder, rows, rows);
        Wanted wanted;
        wanted.logits = w.logits.reserve((size_t)rows * size);
        batch_.step(w, tokens_.data(), 1, wanted);
        // The first step has one hypothesis a sentence, the others `beams_`.
        const int held = rows / (int)running_.size();
        const size_t all = (size_t)rows * many;
        std::vector<Candidate> found(all);
        float* values = w.bounds.reserve(all);
        int32_t* ids = w.candidates.reserve(all);
        w.team.run(rows, 8.0 * rows * size, [&](int row, int) {
            candidates_of(w.kernels, wanted.logits + (size_t)row * size, size,
                          running_[row / held].sums[row % held], row % held, many,
                          values + (size_t)row * many, ids + (size_t)row * many,
                          found.data() + (size_t)row * many);
        });
        std::vector<Sentence> before = std::move(running_);
        running_.clear();
        rows_.clear();
        tokens_.clear();
        for (size_t i = 0; i < before.size(); i++) {
            const size_t at = ((size_t)number * count_ + before[i].number) * many;
            follow(before[i], found.data() + i * held * many, held, (int)i * held, at);
        }
        batch_.select(rows_.data(), (int)rows_.size());
    }

private:
    // Record a sentence's best candidates, and go on with those that do not end.
    void follow(Sentence& sentence, Candidate* found, int held, int first_row, size_t at) {
        const int many = 2 * beams_;
        // Stable: ties stay in the order of beams, then of ids.
        std::stable_sort(found, found + (size_t)held * many, [](const Candidate& a,
                                                                const Candidate& b) {
            return a.total > b.total;
        });
        sentence.sums.clear();
        const size_t rows = rows_.size();
        for (int rank = 0; rank < many; rank++) {
            const Candidate& c = found[rank];
            record_.tokens[at + rank] = c.token;
            record_.parents[at + rank] = c.parent;
            record_.log_probs[at + rank] = c.log_prob;
            if (c.token == config_.eos_id) {
                if (rank < beams_ && c.total > -INFINITY) sentence.finished++;
            } else if ((int)sentence.sums.size() < beams_) {
                sentence.sums.push_back(c.total);
                rows_.push_back(first_row + c.parent);
                tokens_.push_back(c.token);
            }
        }
        if (sentence.finished < enough_) {
            running_.push_back(std::move(sentence));
        } else {
            rows_.resize(rows);
            tokens_.resize(rows);
        }
    }

    Batch& batch_;
    const Config& config_;
    const int count_, beams_, enough_;
    const BeamRecord record_;
    std::vector<Sentence> running_;
    std::vector<int32_t> rows_, tokens_;  // that the next step goes on with
};

}  // namespace

int beam(Workspace& w, std::shared_ptr<Model> model, const Sources& sources, int beams, int enough, int most,
         const BeamRecord& record) {
    const Config& config = model->config;
    const int half = config.target_vocab_size / 2;
    if (beams < 1 || beams > half)
        throw Error("beam_size is " + std::to_string(beams) + "; expected at least 1 and at most " +
                    std::to_string(half) + ", half of the vocabulary");
    Batch batch(model);
    batch.enter(w, sources);
    const int steps = config.max_positions ? std::min(most, config.max_positions) : most;
    const size_t of_step = (size_t)sources.count * 2 * beams;
    Search search(batch, sources.count, beams, enough, record);
    int step = 0;
    for (; step < steps && search.active(); step++) {
        w.check_cancelled();
        std::fill_n(record.tokens + step * of_step, of_step, 0);
        std::fill_n(record.parents + step * of_step, of_step, 0);
        std::fill_n(record.log_probs + step * of_step, of_step, 0.0f);
        search.step(w, step);
    }
    return step;
}

}  // namespace tfn
