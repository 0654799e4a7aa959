#include "model.h"

#include <algorithm>
#include <cmath>

namespace tfn {
namespace {

struct Loader {
    const Kernels& kernels;
    Tensors& tensors;
    const Config& config;
    Lookups& lookups;

    Heads plain(int n) const { return {1, n, n}; }
    Heads heads(int count, int dim) const {
        return {count, dim, (int)round_up(dim, kernels.lanes)};
    }
    Linear linear(const std::vector<Source>& sources, Heads outputs, Heads inputs) const {
        return Linear(kernels, tensors, sources, outputs, inputs);
    }
    Attention attention(const std::string& name, const std::vector<std::string>& parts, Heads heads,
                        Placement placement) const {
        Attention a;
        a.heads = heads;
        a.scale = config.scale_scores ? 1.0f / std::sqrt((float)heads.dim) : 1.0f;
        std::vector<Source> sources;
        for (auto& part : parts) sources.push_back({name + "." + part, config.attention_bias});
        a.projection = linear(sources, heads, plain(config.d_model));
        a.out = linear({{name + ".out_proj", config.attention_bias}}, plain(config.d_model), heads);
        a.residual = Residual(tensors, config, placement, name + "_residual");
        return a;
    }
    Attention self_attention(const std::string& name, Heads heads, Placement placement,
                             bool bidirectional) const {
        Attention a = attention(name, {"q_proj", "k_proj", "v_proj"}, heads, placement);
        if (config.relative_positions != Relative::buckets)
            a.own = RelativePositions(tensors, name + ".relative", config, heads, lookups,
                                      bidirectional);
        return a;
    }
    FeedForward feed_forward(const std::string& layer, int width, Placement placement) const {
        FeedForward f;
        const std::string name = layer + "feed_forward";
        const bool bias = config.feed_forward_bias;
        f.width = width;
        f.gated = config.gated_feed_forward;
        f.activation = config.activation;
        f.up = linear({{name + ".up_proj", bias}}, plain(width), plain(config.d_model));
        if (f.gated)
            f.gate = linear({{name + ".gate_proj", bias}}, plain(width), plain(config.d_model));
        f.down = linear({{name + ".down_proj", bias}}, plain(config.d_model), plain(width));
        f.residual = Residual(tensors, config, placement, name + "_residual");
        return f;
    }
    RelativePositions of_stack(const std::string& name, Heads heads, bool bidirectional) const {
        if (config.relative_positions != Relative::buckets) return {};
        return RelativePositions(tensors, name + ".relative", config, heads, lookups,
                                 bidirectional);
    }
};

}  // namespace

Model::Model(const Config& given, Tensors& tensors, const Kernels& kernels, int threads)
    : config(given), kernels(kernels),
      decoder_heads{given.decoder_num_heads, given.decoder_head_dim,
                    (int)round_up(given.decoder_head_dim, kernels.lanes)},
      workspaces(kernels, threads) {
    Lookups lookups(config);
    const Loader load{kernels, tensors, config, lookups};
    target_embedding =
        Embedding(tensors, config, "target_embedding", config.target_vocab_size,
                  config.target_scale, config.target_embedding_norm, config.unplaced_id);
    if (config.takes_ids()) {
        source_embedding = Embedding(tensors, config, "source_embedding", config.source_vocab_size,
                                     config.source_scale, config.source_embedding_norm, -1);
        if (config.positions_every_layer && config.has_positions)
            layer_positions_ = PositionTable(tensors, config, "encoder.positions");
    }
    if (has_encoder()) {
        const Config& own = config.of_encoder();
        const Loader load{kernels, tensors, own, lookups};
        const Heads heads = load.heads(own.num_heads, own.head_dim);
        for (int i = 0; i < (own.share_encoder_layers ? 1 : own.num_encoder_layers); i++) {
            const std::string name = "encoder.layers." + std::to_string(i) + ".";
            encoder.push_back(
                {load.self_attention(name + "self_attn", heads, own.norm_placement, true),
                 load.feed_forward(name, own.d_ff, own.norm_placement)});
        }
        encoder_relative = load.of_stack("encoder", heads, true);
        if (own.encoder_final_norm) encoder_norm = Norm(tensors, own, "encoder.norm");
    }
    const Placement placement = config.decoder_norm_placement;
    for (int i = 0; i < (config.share_decoder_layers ? 1 : config.num_decoder_layers); i++) {
        const std::string name = "decoder.layers." + std::to_string(i) + ".",
                          cross = name + "cross_attn";
        const bool bias = config.attention_bias;
        decoder.push_back({load.self_attention(name + "self_attn", decoder_heads, placement, false),
                           load.attention(cross, {"q_proj"}, decoder_heads, placement),
                           load.linear({{cross + ".k_proj", bias}, {cross + ".v_proj", bias}},
                                       decoder_heads, load.plain(config.state_size())),
                           load.feed_forward(name, config.decoder_d_ff, placement)});
    }
    decoder_relative = load.of_stack("decoder", decoder_heads, false);
    if (config.decoder_final_norm) decoder_norm = Norm(tensors, config, "decoder.norm");
    vocabulary = Vocabulary(kernels, tensors, config);
    tensors.check();
}

void Model::check(const Sources& sources) const {
    Problems problems;
    const int32_t* id = sources.ids;
    if (id && !config.takes_ids())
        throw Error("the model has no encoder; it takes states, not ids");
    for (int i = 0; i < sources.count; i++) {
        const int length = sources.lengths[i];
        const std::string name = "source " + std::to_string(i);
        if (length < 1) throw Error(name + " is empty");
        if (!id) continue;
        if (config.max_positions && length > config.max_positions)
            problems.add(name + " has " + std::to_string(length) + " tokens; the model takes " +
                         std::to_string(config.max_positions));
        for (int j = 0; j < length; j++, id++)
            if (*id < 0 || *id >= config.source_vocab_size)
                problems.add(name + " has id " + std::to_string(*id) + "; the vocabulary has " +
                             std::to_string(config.source_vocab_size));
    }
    problems.raise();
}

}  // namespace tfn
