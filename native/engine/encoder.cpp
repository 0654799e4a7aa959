#include <algorithm>

#include "model.h"

namespace tfn {
namespace {

constexpr int TOKENS = 512;  // that pass through the layers together, if a source is not longer

// Where each position of sources stands, and the blocks of each source's keys and values.
struct Layout {
    std::vector<int> ids, positions;
    std::vector<const float*> blocks;
    std::vector<Query> queries;

    Layout(const Sources& sources, const float* projected, size_t stride) {
        const int32_t* id = sources.ids;
        size_t count = 0, row = 0;
        for (int i = 0; i < sources.count; i++) count += (sources.lengths[i] + BLOCK - 1) / BLOCK;
        blocks.reserve(count);
        for (int i = 0; i < sources.count; i++) {
            const int length = sources.lengths[i];
            const float* const* first = blocks.data() + blocks.size();
            for (int at = 0; at < length; at += BLOCK)
                blocks.push_back(projected + (row + at) * stride);
            for (int at = 0; at < length; at++) {
                ids.push_back(*id++);
                positions.push_back(at);
                queries.push_back({first, stride, 0, length, at, nullptr});
            }
            row += length;
        }
    }
};

void rotate_rows(Workspace& w, const RelativePositions& relative, const Attention& self,
                 const std::vector<int>& positions, float* projected, size_t ld) {
    const int half = self.heads.dim / 2;
    float* angles = w.angles.reserve(self.heads.dim);
    for (size_t row = 0; row < positions.size(); row++) {
        relative.angles(positions[row], angles, angles + half);
        for (int part = 0; part < 2; part++)
            relative.rotate(projected + row * ld + part * self.heads.width(), self.heads, angles,
                            angles + half);
    }
}

}  // namespace

void Model::run_encoder(Workspace& w, const Sources& sources) const {
    int rows = 0;
    for (int i = 0; i < sources.count; i++) rows += sources.lengths[i];
    const Heads& heads = encoder[0].self.heads;
    const size_t d = width(config.d_model), inner = heads.width(), ld = width(3 * inner);
    float* projected = w.projected.reserve(rows * ld);
    const Layout layout(sources, projected, ld);
    source_embedding.embed(w, layout.ids, layout.positions);
    auto add_positions = [&] {
        if (!layer_positions_) return;
        for (int row = 0; row < rows; row++)
            layer_positions_.add(layout.positions[row], w.x.data() + row * d);
    };
    add_positions();
    for (int i = 0; i < config.num_encoder_layers; i++) {
        Team::Span span(w.team, Work::encoder, rows);
        const EncoderLayer& layer = encoder[i % encoder.size()];
        const Attention& self = layer.self;
        add_positions();
        project(w, self.projection, self.residual.enter(w, rows), d, rows, projected, ld);
        if (self.own.rotates()) rotate_rows(w, self.own, self, layout.positions, projected, ld);
        const RelativePositions* relative =
            encoder_relative.adds_bias() ? &encoder_relative : &self.own;
        attend(w, self, relative, layout.queries, projected, ld,
               {inner, 2 * inner, (size_t)heads.padded});
        self.residual.leave(w, rows, self.out, w.context.data(), inner);
        layer.feed_forward.run(w, rows);
    }
    if (encoder_norm) encoder_norm.apply(w, w.x.data(), w.x.data(), rows);
}

// Keys and values of the states in w.x, into blocks from `first` on.
void Model::remember(Workspace& w, const Sources& sources, Memory& memory, size_t first) const {
    const BlockLayout layout = memory_layout();
    const size_t ld = width(2 * layout.heads.width());
    int rows = 0;
    for (int i = 0; i < sources.count; i++) rows += sources.lengths[i];
    float* projected = w.projected.reserve(rows * ld);
    for (int i = 0; i < config.num_decoder_layers; i++) {
        Team::Span span(w.team, Work::memory, rows);
        project(w, decoder_layer(i).cross_key_value, w.x.data(), width(config.d_model), rows,
                projected, ld);
        const float* row = projected;
        float* block = memory.values.data() + i * memory.layer_size + first * memory.block_size;
        for (int source = 0; source < sources.count; source++) {
            const int length = sources.lengths[source];
            for (int at = 0; at < length; at++, row += ld)
                layout.write(row, block + at / BLOCK * layout.size(), at % BLOCK);
            block += BlockLayout::count(length) * layout.size();
        }
    }
}

std::vector<Encoded> Model::encode(Workspace& w, const Sources& sources, float* states) const {
    const size_t d = width(config.d_model);
    auto memory = std::make_shared<Memory>();
    size_t all = 0;
    for (int i = 0; i < sources.count; i++) all += BlockLayout::count(sources.lengths[i]);
    memory->block_size = memory_layout().size();
    memory->layer_size = all * memory->block_size;
    if (!states) memory->values.reserve(memory->layer_size * config.num_decoder_layers);
    std::vector<Encoded> found;
    size_t first = 0, block = 0;
    for (int from = 0; from < sources.count;) {
        w.check_cancelled();
        Sources some{sources.ids + first, sources.lengths + from, 0};
        int rows = 0;
        do rows += some.lengths[some.count++];
        while (from + some.count < sources.count && rows + some.lengths[some.count] <= TOKENS);
        run_encoder(w, some);
        for (int row = 0; states && row < rows; row++)
            std::copy_n(w.x.data() + row * d, config.d_model,
                        states + (first + row) * config.d_model);
        if (!states) remember(w, some, *memory, block);
        for (int i = 0; i < some.count; i++) {
            found.push_back({memory, block, some.lengths[i]});
            block += BlockLayout::count(some.lengths[i]);
        }
        first += rows;
        from += some.count;
    }
    return found;
}

}  // namespace tfn
