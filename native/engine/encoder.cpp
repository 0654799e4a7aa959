#include <algorithm>
#include <optional>

#include "model.h"
#include "source_attention.h"

namespace tfn {
namespace {

constexpr int TOKENS = 256;  // that pass through the layers together, if a source is not longer
// Of a source of so many positions each layer is a span of its own: to try another kind of sharing
// for all of them would take too long.
constexpr int LONG = 256;

// Some sources one after another, and how many positions and blocks others before them have.
struct Group {
    Sources sources;
    int state_size;
    size_t row = 0, block = 0;

    int rows() const {
        int all = 0;
        for (int i = 0; i < sources.count; i++) all += sources.lengths[i];
        return all;
    }
    void skip() {  // the first
        const int length = *sources.lengths++;
        if (sources.ids) sources.ids += length;
        if (sources.states) sources.states += (size_t)length * state_size;
        sources.count--;
        row += length;
        block += BlockLayout::count(length);
    }
    // Its sources from `first` on, `last` left out.
    Group part(int first, int last) const {
        Group part = *this;
        for (int i = 0; i < first; i++) part.skip();
        part.sources.count = last - first;
        return part;
    }
};

// Where each position of sources stands, and keys and values of each.
struct Layout {
    std::vector<int> ids, positions;
    std::vector<const float*> places;
    std::vector<Query> queries;

    Layout(const Sources& sources, int rows, const float* projected, size_t stride) {
        const int32_t* id = sources.ids;
        for (int row = 0; row < rows; row++) places.push_back(projected + row * stride);
        const float* const* first = places.data();
        for (int i = 0; i < sources.count; first += sources.lengths[i++])
            for (int at = 0; at < sources.lengths[i]; at++) {
                if (id) ids.push_back(*id++);
                positions.push_back(at);
                queries.push_back({first, 0, sources.lengths[i], at, nullptr});
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

void Model::run_encoder(Workspace& w, const Sources& sources, int rows) const {
    const Heads& heads = encoder[0].self.heads;
    const size_t d = width(config.of_encoder().d_model), inner = heads.width(),
                 ld = width(3 * inner);
    float* projected = w.projected.reserve(rows * ld);
    const Layout layout(sources, rows, projected, ld);
    if (sources.embeddings) take_states(w, sources, rows);
    else source_embedding.embed(w, layout.ids, layout.positions);
    auto add_positions = [&] {
        if (!layer_positions_) return;
        for (int row = 0; row < rows; row++)
            layer_positions_.add(layout.positions[row], w.x.data() + row * d);
    };
    add_positions();
    for (int i = 0; i < config.of_encoder().num_encoder_layers; i++) {
        const EncoderLayer& layer = encoder[i % encoder.size()];
        const Attention& self = layer.self;
        const Team::Span span(w.team, Phase::encoder, rows);  // or a part of the caller's
        add_positions();
        project(w, self.projection, Role::sources, self.residual.enter(w, rows), d, rows, projected,
                ld);
        if (self.own.rotates()) rotate_rows(w, self.own, self, layout.positions, projected, ld);
        const RelativePositions* relative =
            encoder_relative.adds_bias() ? &encoder_relative : &self.own;
        if (relative->adds_bias())
            attend(w, self, relative, layout.queries, projected, ld,
                   {inner, 2 * inner, (size_t)heads.padded});
        else attend_within(w, self, sources.lengths, sources.count, projected, ld);
        self.residual.leave(w, Role::sources, rows, self.out, w.context.data(), inner);
        layer.feed_forward.run(w, Role::sources, rows);
    }
    if (encoder_norm) encoder_norm.apply(w, w.x.data(), w.x.data(), rows);
}

// Given states, where the encoder leaves its own; or embeddings, where it begins.
void Model::take_states(Workspace& w, const Sources& sources, int rows) const {
    const size_t size = config.state_size(), ld = width(config.state_size());
    float* x = w.x.reserve(rows * ld);
    for (int row = 0; row < rows; row++, x += ld) {
        std::copy_n(sources.states + row * size, size, x);
        std::fill(x + size, x + ld, 0.0f);
    }
}

// Keys and values of the states in w.x, into blocks from `first` on.
void Model::remember(Workspace& w, const Sources& sources, int rows, Memory& memory,
                     size_t first) const {
    const BlockLayout layout = memory_layout();
    const size_t ld = width(2 * layout.heads.width());
    const Team::Span span(w.team, Phase::encoder, rows);
    float* projected = w.projected.reserve(rows * ld);
    for (int i = 0; i < config.num_decoder_layers; i++) {
        project(w, decoder_layer(i).cross_key_value, Role::sources, w.x.data(),
                width(config.state_size()), rows, projected, ld);
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
    auto memory = std::make_shared<Memory>();
    std::vector<Encoded> found;
    size_t all = 0;
    for (int i = 0; i < sources.count; i++) {
        found.push_back({memory, all, sources.lengths[i]});
        all += BlockLayout::count(sources.lengths[i]);
    }
    memory->block_size = memory_layout().size();
    memory->layer_size = all * memory->block_size;
    if (!states) memory->values.reserve(memory->layer_size * config.num_decoder_layers);
    const auto encode = [&](Workspace& w, const Group& group) {
        const int rows = group.rows();
        if (group.sources.states && !group.sources.embeddings) take_states(w, group.sources, rows);
        else run_encoder(w, group.sources, rows);
        if (!states) return remember(w, group.sources, rows, *memory, group.block);
        const size_t size = config.state_size();
        for (int row = 0; row < rows; row++)
            std::copy_n(w.x.data() + row * width(size), size, states + (group.row + row) * size);
    };
    for (Group rest{sources, config.state_size()}; rest.sources.count;) {
        w.check_cancelled();
        const Group start = rest;
        do rest.skip();
        while (rest.sources.count && rest.row - start.row + *rest.sources.lengths <= TOKENS);
        const Group group = start.part(0, start.sources.count - rest.sources.count);
        const int count = group.sources.count, rows = group.rows();
        const bool separate = count >= w.team.threads();
        std::optional<Team::Span> span;
        if (separate || rows < LONG)
            span.emplace(w.team, Phase::encoder, rows, separate ? rows : 0);
        if (!w.team.by_rows()) encode(w, group);
        else
            share_rows(w, count, [&](Workspace& part, int first, int last) {
                encode(part, group.part(first, last));
            });
    }
    return found;
}

}  // namespace tfn
