#include <algorithm>

#include "search.h"

namespace tfn {
namespace {

// The rows of a greedy search that have not ended.
struct Running {
    std::vector<int32_t> rows, tokens, chosen;
};

constexpr int SCORED = 128;  // states at a time

// The log-probability of a token by each state (count, width(E)). `barred`: where the end token may
// not be chosen; or null.
void score(Workspace& w, const Model& model, const float* states, int count, const int32_t* tokens,
           const uint8_t* barred, double* found) {
    const int size = model.vocabulary.size();
    float* logits = w.logits.reserve((size_t)count * size);
    model.vocabulary.logits(w, states, count, logits, size);
    w.team.run(count, 4.0 * count * size, [&](int i, int) {
        float* of_row = logits + (size_t)i * size;
        for (int id : model.config.suppress_tokens) of_row[id] += SUPPRESSED;
        if (barred && barred[i]) of_row[model.config.eos_id] += SUPPRESSED;
        found[i] = of_row[tokens[i]] - (float)w.kernels.log_sum_exp(of_row, size);
    });
}

// Log-probabilities of tokens, many at a time: they read the whole projection, which choosing a
// token does not.
class Scores {
public:
    Scores(const Model& model, int rows) : model_(model), sums_(rows) {
        states_.reserve((size_t)SCORED * ld());
    }
    // The token that a row chose by its state, from all or from those that do not end it.
    void add(Workspace& w, int row, int32_t token, const float* state, bool barred) {
        std::copy_n(state, ld(), states_.data() + rows_.size() * ld());
        rows_.push_back(row);
        tokens_.push_back(token);
        barred_.push_back(barred);
        if (rows_.size() == SCORED) compute(w);
    }
    // Means over so many tokens of each row.
    void finish(Workspace& w, const int32_t* counts, float* scores) {
        compute(w);
        for (size_t row = 0; row < sums_.size(); row++)
            scores[row] = (float)(sums_[row] / std::max(1, (int)counts[row]));
    }

private:
    size_t ld() const { return width(model_.config.d_model); }

    void compute(Workspace& w) {
        const size_t count = rows_.size();
        std::vector<double> found(count);
        score(w, model_, states_.data(), (int)count, tokens_.data(), barred_.data(), found.data());
        for (size_t i = 0; i < count; i++) sums_[rows_[i]] += found[i];  // in the order of steps
        rows_.clear();
        tokens_.clear();
        barred_.clear();
    }

    const Model& model_;
    std::vector<double> sums_;  // of each row
    Buffer<float> states_;
    std::vector<int32_t> rows_, tokens_;
    std::vector<uint8_t> barred_;
};

// The states and the last layer's attention of a step, and the rows that have ended.
class Records {
public:
    Records(const Batch& batch, const Trace* trace, int rows, int most)
        : trace_(trace), most_(most), heads_(batch.model().config.decoder_num_heads),
          d_(batch.model().config.d_model) {
        if (!trace) return;
        trace->batch->make_places(rows);
        weights_.reserve((size_t)rows * heads_ * trace->source_width);
    }
    void prepare(Wanted& wanted, int rows) {
        if (!trace_) return;
        std::fill_n(weights_.data(), (size_t)rows * heads_ * trace_->source_width, 0.0f);
        wanted.last_attention = weights_.data();
        wanted.source_width = trace_->source_width;
    }
    // `states`: null where no step was made.
    void add(int step, const std::vector<int32_t>& rows, const float* states) {
        if (!trace_) return;
        const size_t source = trace_->source_width, ld = width(d_);
        for (size_t i = 0; i < rows.size(); i++) {
            const size_t at = (size_t)rows[i] * most_ + step;
            if (states) std::copy_n(states + i * ld, d_, trace_->states + at * d_);
            else std::fill_n(trace_->states + at * d_, d_, 0.0f);
            mean_of_heads(weights_.data() + i * heads_ * source, 1, heads_, (int)source,
                          trace_->attention + at * source);
        }
    }
    void end(int row, const Batch& batch, int place) {
        if (trace_) trace_->batch->put(row, batch, place);
    }

private:
    const Trace* trace_;
    int most_, heads_, d_;
    Buffer<float> weights_;
};

int longest(const Config& config, int most) {
    return config.max_positions ? std::min(most, config.max_positions) : most;
}

}  // namespace

int generate(Workspace& w, std::shared_ptr<Model> model, const Sources& sources, int most,
             int least, int32_t* sequences, int32_t* counts, float* scores, const Trace* trace) {
    const Config& config = model->config;
    Batch batch(model);
    batch.enter(w, sources);
    const int steps = longest(config, most), count = sources.count;
    std::fill(counts, counts + count, 0);
    Running running;
    std::unique_ptr<Scores> scoring;
    if (scores) scoring.reset(new Scores(*model, count));
    Records records(batch, trace, count, most);
    for (int row = 0; row < count; row++) running.rows.push_back(row);
    running.tokens.assign(count, config.start_id);
    Buffer<float> allowed;  // before the least length
    if (least > 0) allowed = model->vocabulary.allowed_without(config.eos_id);
    const std::vector<uint8_t> every(count, 1);
    int step = 0;
    for (; step < steps && !running.rows.empty(); step++) {
        w.check_cancelled();
        const int rows = (int)running.rows.size();
        Team::Span span(w.team, Phase::decoder, rows, rows);
        const bool last = step + 1 == steps && config.last_token >= 0, barred = step < least;
        const int forced = last ? config.last_token : step == 0 ? config.first_token : -1;
        running.chosen.assign(rows, forced);
        Wanted wanted;
        if (forced < 0) wanted.best = running.chosen.data();
        if (barred) wanted.barred = {config.eos_id, allowed.data(), every.data()};
        records.prepare(wanted, rows);
        if (!last) batch.step(w, running.tokens.data(), 1, wanted);
        records.add(step, running.rows, last ? nullptr : w.x.data());
        for (int i = 0; scoring && forced < 0 && i < rows; i++)
            scoring->add(w, running.rows[i], running.chosen[i],
                         w.x.data() + i * width(config.d_model), barred);
        std::vector<int32_t> kept, rows_left, tokens;
        for (int i = 0; i < rows; i++) {
            const int row = running.rows[i], token = running.chosen[i];
            sequences[(size_t)row * most + step] = token;
            counts[row] = step + 1;
            if (token == config.eos_id || step + 1 == steps) records.end(row, batch, i);
            if (token == config.eos_id) continue;
            kept.push_back(i);
            rows_left.push_back(row);
            tokens.push_back(token);
        }
        if ((int)kept.size() < rows) batch.select(kept.data(), (int)kept.size());
        running.rows = std::move(rows_left);
        running.tokens = std::move(tokens);
    }
    if (scoring) scoring->finish(w, counts, scores);
    for (int row = 0; row < count; row++)
        std::fill(sequences + (size_t)row * most + counts[row],
                  sequences + (size_t)row * most + step, config.pad_id);
    return step;
}

void log_probs(Workspace& w, const Model& model, const float* states, int count,
               const int32_t* tokens, double* found) {
    const int d = model.config.d_model;
    const size_t ld = width(d);
    Buffer<float> padded((size_t)std::min(count, SCORED) * ld);
    for (int first = 0; first < count; first += SCORED) {
        const int some = std::min(SCORED, count - first);
        for (int i = 0; i < some; i++)
            std::copy_n(states + (size_t)(first + i) * d, d, padded.data() + i * ld);
        score(w, model, padded.data(), some, tokens + first, nullptr, found + first);
    }
}

}  // namespace tfn
