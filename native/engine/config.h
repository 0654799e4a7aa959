// The mathematics of a model: the keys of tfexport's TransformerConfig, and the rules of decoding.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "kernels/kernels.h"

namespace tfn {

enum class Placement { post, pre, res_post };
enum class EmbeddingNorm { none, tokens, sum };
enum class Relative { none, buckets, buckets_every_layer, shaw, rotary };

struct Config {
    int d_model = 0, num_heads = 0, head_dim = 0, d_ff = 0;
    int num_encoder_layers = 0, num_decoder_layers = 0;
    int decoder_num_heads = 0, decoder_head_dim = 0, decoder_d_ff = 0;
    int source_vocab_size = 0, target_vocab_size = 0;
    int memory_width = 0;  // of states that are given; 0 for a model that encodes ids
    // Of an encoder that takes embeddings in place of ids, and gives states of memory_width; null
    // for none. Its keys are those of a model's encoder.
    std::shared_ptr<const Config> embedded;
    int max_positions = 0;  // of sources and targets; 0 if nothing bounds them
    NormKind norm = NormKind::layer;
    float norm_eps = 1e-5f;
    Placement norm_placement = Placement::post, decoder_norm_placement = Placement::post;
    Activation activation = Activation::relu;
    EmbeddingNorm source_embedding_norm = EmbeddingNorm::none;
    EmbeddingNorm target_embedding_norm = EmbeddingNorm::none;
    float source_scale = 1, target_scale = 1, residual_scale = 1;
    bool norm_bias = true, encoder_final_norm = true, decoder_final_norm = true;
    bool attention_bias = true, feed_forward_bias = true, output_bias = true;
    bool has_positions = true, positions_every_layer = false;
    bool share_encoder_layers = false, share_decoder_layers = false;
    bool gated_feed_forward = false, scale_scores = true;
    Relative relative_positions = Relative::none;
    int relative_buckets = 32, relative_max_distance = 128;
    int unplaced_id = -1;  // of the target, without a position; -1 for none
    int pad_id = 0, start_id = 0, eos_id = 0;
    int first_token = -1, last_token = -1;  // forced by greedy search; -1 for none
    std::vector<int> suppress_tokens;       // never chosen by greedy search

    // Values of a state of the encoder.
    int state_size() const { return memory_width ? memory_width : d_model; }
    bool takes_ids() const { return memory_width == 0; }
    const Config& of_encoder() const { return embedded ? *embedded : *this; }

    // Lines "key=value"; those of `embedded` begin with "encoder.". Unknown keys, missing keys and
    // wrong values are all named.
    static Config parse(const std::string& text);
};

}  // namespace tfn
