// A step of a batch: the decoder's layers over the next tokens of all rows.
#include <algorithm>

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
};

size_t Batch::attention_size(int each, const Wanted& wanted) const {
    const Config& config = model_->config;
    return (size_t)each * wanted.source_width * config.num_decoder_layers *
           config.decoder_num_heads;
}

// `tokens` and `wanted` are those of these rows alone.
Batch::Step Batch::prepare(Rows rows, const int32_t* tokens, int each, const Wanted& wanted) const {
    Step step;
    const size_t weights_of_row = attention_size(each, wanted);
    step.weights_apart = (size_t)each * wanted.source_width;
    size_t written = 0;
    for (int row = rows.first; row < rows.last; row++) written += rows_[row].cache.length();
    step.written.reserve(written);  // pointers into it stay
    for (int row = 0; row < rows.count(); row++) {
        const Row& held = rows_[rows.first + row];
        const Cache& cache = held.cache;
        const Encoded& source = held.source;
        const float* const* first = step.written.data() + step.written.size();
        for (int i = 0; i < cache.length(); i++) step.written.push_back(cache.position(i));
        for (int i = 0; i < each; i++) {
            const int at = cache.length() - each + i;
            step.ids.push_back(tokens[(size_t)row * each + i]);
            step.positions.push_back(at);
            step.newest.push_back(cache.position(at));
            step.own.push_back({first, position_size(), at + 1, at, nullptr});
            float* weights = nullptr;
            if (wanted.attention)
                weights = wanted.attention + row * weights_of_row + (size_t)i * wanted.source_width;
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
    project(w, self.projection, self.residual.enter(w, rows), width(model_->config.d_model), rows,
            projected, ld);
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
    self.residual.leave(w, rows, self.out, w.context.data(), inner);
}

void Batch::cross_attention(Workspace& w, const Step& step, const DecoderLayer& layer,
                            int i) const {
    const Attention& cross = layer.cross;
    const int rows = (int)step.ids.size();
    const size_t inner = cross.heads.width(), ld = width(inner);
    float* queries = w.projected.reserve(rows * ld);
    project(w, cross.projection, cross.residual.enter(w, rows), width(model_->config.d_model), rows,
            queries, ld);
    const BlockLayout layout = model_->memory_layout();
    attend(w, cross, nullptr, step.cross, queries, ld,
           {0, layout.values(), layout.head(), i, step.weights_apart});
    cross.residual.leave(w, rows, cross.out, w.context.data(), inner);
}

void Batch::step(Workspace& w, const int32_t* tokens, int each, const Wanted& wanted) {
    check(tokens, each);
    if (rows_.empty()) return;
    std::vector<int> lengths;
    for (const Row& row : rows_) lengths.push_back(row.cache.length());
    try {
        advance(w, tokens, each, wanted);
    } catch (...) {  // for want of memory: the rows are where they were
        for (int row = 0; row < rows(); row++) rows_[row].cache.shorten(lengths[row]);
        throw;
    }
}

void Batch::advance(Workspace& w, const int32_t* tokens, int each, const Wanted& wanted) {
    Team::Span span(w.team, Phase::decoder, rows() * each, rows());
    for (Row& row : rows_) row.cache.extend(positions_, each);
    if (!w.team.by_rows()) return advance(w, {0, rows()}, tokens, each, wanted);
    const size_t of_row = each * width(model_->config.d_model);
    const size_t logits =
        (size_t)each * (wanted.columns ? wanted.count : model_->vocabulary.size());
    float* states = w.x.reserve(rows() * of_row);
    share_rows(w, rows(), [&](Workspace& part, int first, int last) {
        advance(part, {first, last}, tokens + (size_t)first * each, each,
                wanted.from(first, logits, attention_size(each, wanted)));
        std::copy_n(part.x.data(), (last - first) * of_row, states + first * of_row);
    });
}

void Batch::advance(Workspace& w, Rows rows, const int32_t* tokens, int each,
                    const Wanted& wanted) const {
    const Step step = prepare(rows, tokens, each, wanted);
    model_->target_embedding.embed(w, step.ids, step.positions);
    for (int i = 0; i < model_->config.num_decoder_layers; i++) {
        const DecoderLayer& layer = model_->decoder_layer(i);
        self_attention(w, step, layer, i);
        cross_attention(w, step, layer, i);
        layer.feed_forward.run(w, (int)step.ids.size());
    }
    const Norm& norm = model_->decoder_norm;
    if (norm) norm.apply(w, w.x.data(), w.x.data(), (int)step.ids.size());
    finish(w, rows.count(), each, wanted);
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
