// A step of a batch: the decoder's layers over the next tokens of all rows.
#include <algorithm>
#include <cmath>

#include "batch.h"

namespace tfn {

// Items are tokens: row after row, and of a row one position after another.
struct Batch::Step {
    std::vector<int> ids, positions;
    std::vector<const float*> written;  // positions of all rows
    std::vector<float*> newest;         // of each item, its own
    std::vector<Query> own, cross;
    std::vector<float> cosines, sines;  // of each item, where positions rotate
    size_t weights_apart = 0;
    int first_weighed = 0;
};

size_t Batch::attention_size(int each, const Wanted& wanted) const {
    const Config& config = model_->config;
    const int layers = wanted.last_attention ? 1 : config.num_decoder_layers;
    return (size_t)each * wanted.source_width * layers * config.decoder_num_heads;
}

// `tokens` and `wanted` are those of these rows alone.
Batch::Step Batch::prepare(Rows rows, const Tokens& tokens, const Wanted& wanted) const {
    Step step;
    const size_t weights_of_row = attention_size(tokens.each, wanted);
    const size_t of_token = attention_size(1, wanted);
    step.weights_apart = (size_t)tokens.each * wanted.source_width;
    if (wanted.last_attention) {
        step.weights_apart = wanted.source_width;
        step.first_weighed = model_->config.num_decoder_layers - 1;
    }
    size_t written = 0;
    for (int row = rows.first; row < rows.last; row++) written += rows_[row].cache.length();
    step.written.reserve(written);  // pointers into it stay
    const int32_t* ids = tokens.ids;
    for (int row = 0; row < rows.count(); row++) {
        const int each = tokens.of(row);
        const Row& held = rows_[rows.first + row];
        const Cache& cache = held.cache;
        const Encoded& source = held.source;
        const float* const* first = step.written.data() + step.written.size();
        for (int i = 0; i < cache.length(); i++) step.written.push_back(cache.position(i));
        for (int i = 0; i < each; i++) {
            const int at = cache.length() - each + i;
            float* weights = nullptr;
            if (wanted.attention)
                weights = wanted.attention + row * weights_of_row + (size_t)i * wanted.source_width;
            if (wanted.last_attention) weights = wanted.last_attention + step.ids.size() * of_token;
            step.ids.push_back(*ids++);
            step.positions.push_back(at);
            step.newest.push_back(cache.position(at));
            step.own.push_back({first, position_size(), at + 1, at, nullptr});
            step.cross.push_back({held.source_positions->data(), source.memory->layer_size,
                                  source.length, 0, weights});
        }
    }
    const RelativePositions& own = model_->decoder[0].self.own;
    if (own.rotates()) {
        const int half = model_->decoder_heads.dim / 2;
        step.cosines.resize(step.ids.size() * half);
        step.sines.resize(step.ids.size() * half);
        for (size_t i = 0; i < step.ids.size(); i++)
            own.angles(step.positions[i], &step.cosines[i * half], &step.sines[i * half]);
    }
    return step;
}

void Batch::self_attention(Workspace& w, const Step& step, const DecoderLayer& layer, int i) const {
    const Attention& self = layer.self;
    const int rows = (int)step.ids.size(), half = self.heads.dim / 2;
    const size_t inner = self.heads.width(), ld = width(3 * inner);
    float* projected = w.projected.reserve(rows * ld);
    project(w, self.projection, role_, self.residual.enter(w, rows), width(model_->config.d_model),
            rows, projected, ld);
    for (int row = 0; row < rows; row++) {
        float* of_row = projected + row * ld;
        if (self.own.rotates())
            for (int part = 0; part < 2; part++)
                RelativePositions::rotate(of_row + part * inner, self.heads,
                                          &step.cosines[row * half], &step.sines[row * half]);
        std::copy_n(of_row + inner, 2 * inner, step.newest[row] + i * position_size());
    }
    const RelativePositions* relative =
        model_->decoder_relative.adds_bias() ? &model_->decoder_relative : &self.own;
    attend(w, self, relative, step.own, projected, ld, {0, inner, (size_t)self.heads.padded, i});
    self.residual.leave(w, role_, rows, self.out, w.context.data(), inner);
}

void Batch::cross_attention(Workspace& w, const Step& step, const DecoderLayer& layer,
                            int i) const {
    const Attention& cross = layer.cross;
    const int rows = (int)step.ids.size();
    const size_t inner = cross.heads.width(), ld = width(inner);
    float* queries = w.projected.reserve(rows * ld);
    project(w, cross.projection, role_, cross.residual.enter(w, rows),
            width(model_->config.d_model), rows, queries, ld);
    const BlockLayout layout = model_->memory_layout();
    attend(w, cross, nullptr, step.cross, queries, ld,
           {0, layout.values(), layout.head(), i, step.weights_apart, step.first_weighed});
    cross.residual.leave(w, role_, rows, cross.out, w.context.data(), inner);
}

template <class F>
void Batch::or_shorten(F&& f) {
    std::vector<int> lengths;
    for (const Row& row : rows_) lengths.push_back(row.cache.length());
    try {
        f();
    } catch (...) {  // for want of memory: the rows are where they were
        for (int row = 0; row < rows(); row++) rows_[row].cache.shorten(lengths[row]);
        throw;
    }
}

void Batch::step(Workspace& w, const int32_t* tokens, int each, const Wanted& wanted) {
    const Tokens given{tokens, each};
    if (each < 1) throw Error("a step of no tokens");
    check(given);
    if (rows_.empty()) return;
    or_shorten([&] { advance(w, given, wanted); });
}

void Batch::read(Workspace& w, const int32_t* tokens, const int32_t* counts,
                 const Reading& reading) {
    const Tokens given{tokens, 0, counts};
    check(given);
    if (rows_.empty()) return;
    int count = 0;
    for (int row = 0; row < rows(); row++) count += counts[row];
    const int heads = model_->config.decoder_num_heads, width = reading.source_width;
    Buffer<float> weights;
    Wanted wanted;
    if (reading.attention) {
        wanted.last_attention = weights.reserve((size_t)count * heads * width);
        wanted.source_width = width;
        std::fill_n(wanted.last_attention, (size_t)count * heads * width, 0.0f);
    }
    or_shorten([&] {
        Team::Span span(w.team, Phase::decoder, count, rows());
        for (int row = 0; row < rows(); row++) rows_[row].cache.extend(positions_, counts[row]);
        advance(w, {0, rows()}, given, wanted);
        const int d = model_->config.d_model;
        for (int i = 0; reading.states && i < count; i++)
            std::copy_n(w.x.data() + i * tfn::width(d), d, reading.states + (size_t)i * d);
        if (reading.targets) compare(w, count, reading);
    });
    if (reading.attention)
        mean_of_heads(wanted.last_attention, count, heads, width, reading.attention);
}

namespace {

// In lanes, which compilers make vectors of.
float greatest(const float* values, int count) {
    constexpr int LANES = 32;
    float lanes[LANES];
    std::fill_n(lanes, LANES, -INFINITY);
    int i = 0;
    for (; i + LANES <= count; i += LANES)
        for (int lane = 0; lane < LANES; lane++)
            lanes[lane] = values[i + lane] > lanes[lane] ? values[i + lane] : lanes[lane];
    float found = *std::max_element(lanes, lanes + LANES);
    for (; i < count; i++) found = std::max(found, values[i]);
    return found;
}

}  // namespace

// By all logits of some tokens at a time.
void Batch::compare(Workspace& w, int count, const Reading& reading) const {
    constexpr int MOST = 128;
    const int size = model_->vocabulary.size();
    const size_t ld = width(model_->config.d_model);
    for (int first = 0; first < count; first += MOST) {
        const int some = std::min(MOST, count - first);
        float* logits = w.logits.reserve((size_t)some * size);
        model_->vocabulary.logits(w, w.x.data() + first * ld, some, logits, size);
        w.team.run(some, 6.0 * some * size, [&](int i, int) {
            float* of_row = logits + (size_t)i * size;
            for (int id : model_->config.suppress_tokens) of_row[id] += SUPPRESSED;
            const float found = of_row[reading.targets[first + i]],
                        highest = greatest(of_row, size);
            const bool own = found == highest;
            reading.best[first + i] =
                own ? reading.targets[first + i]
                    : (int32_t)(std::find(of_row, of_row + size, highest) - of_row);
            reading.gaps[first + i] = highest - found;
            reading.log_probs[first + i] = found - (float)w.kernels.log_sum_exp(of_row, size);
        });
    }
}

void mean_of_heads(const float* weights, int count, int heads, int width, float* means) {
    for (int i = 0; i < count; i++, means += width) {
        std::fill_n(means, width, 0.0f);
        for (int head = 0; head < heads; head++, weights += width)
            for (int s = 0; s < width; s++) means[s] += weights[s] / heads;
    }
}

void Batch::advance(Workspace& w, const Tokens& tokens, const Wanted& wanted) {
    const int each = tokens.each;
    Team::Span span(w.team, Phase::decoder, rows() * each, rows());
    for (Row& row : rows_) row.cache.extend(positions_, each);
    if (!w.team.by_rows()) return advance(w, {0, rows()}, tokens, wanted);
    const size_t of_row = each * width(model_->config.d_model);
    const size_t logits =
        (size_t)each * (wanted.columns ? wanted.count : model_->vocabulary.size());
    float* states = w.x.reserve(rows() * of_row);
    share_rows(w, rows(), [&](Workspace& part, int first, int last) {
        advance(part, {first, last}, {tokens.ids + (size_t)first * each, each},
                wanted.from(first, logits, attention_size(each, wanted)));
        std::copy_n(part.x.data(), (last - first) * of_row, states + first * of_row);
    });
}

void Batch::advance(Workspace& w, Rows rows, const Tokens& tokens, const Wanted& wanted) const {
    const Step step = prepare(rows, tokens, wanted);
    model_->target_embedding.embed(w, step.ids, step.positions);
    for (int i = 0; i < model_->config.num_decoder_layers; i++) {
        const DecoderLayer& layer = model_->decoder_layer(i);
        self_attention(w, step, layer, i);
        cross_attention(w, step, layer, i);
        layer.feed_forward.run(w, role_, (int)step.ids.size());
    }
    const Norm& norm = model_->decoder_norm;
    if (norm) norm.apply(w, w.x.data(), w.x.data(), (int)step.ids.size());
    if (!tokens.counts) finish(w, rows.count(), tokens.each, wanted);
}

void Batch::finish(Workspace& w, int rows, int each, const Wanted& wanted) const {
    const Vocabulary& vocabulary = model_->vocabulary;
    const size_t d = width(model_->config.d_model);
    const int all = rows * each;
    if (wanted.logits && wanted.columns)
        vocabulary.logits_of(w, w.x.data(), all, wanted.columns, wanted.count, wanted.logits,
                             wanted.count);
    else if (wanted.logits) vocabulary.logits(w, w.x.data(), all, wanted.logits, vocabulary.size());
    if (!wanted.best && !wanted.ranked.count) return;
    const float* last = w.x.data();
    if (each > 1) {
        float* states = w.states.reserve(rows * d);
        for (int row = 0; row < rows; row++)
            std::copy_n(w.x.data() + ((size_t)row * each + each - 1) * d, d, states + row * d);
        last = states;
    }
    if (wanted.best) vocabulary.best(w, last, rows, wanted.best, wanted.barred);
    if (wanted.ranked.count) vocabulary.rank(w, last, rows, wanted.ranked);
}

}  // namespace tfn
