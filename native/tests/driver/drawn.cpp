#include "drawn.h"

#include <cmath>
#include <limits>

namespace driver {
namespace {
const std::string EMBEDDED = "encoder.";
}  // namespace

Config::Config(Draw& draw) {
    auto set = [&](const char* key, int value) { values[key] = std::to_string(value); };
    auto choose = [&](const char* key, const std::vector<std::string>& of) {
        values[key] = draw.any(of);
    };
    const std::vector<std::string> placements = {"post", "pre", "res_post"};
    const std::vector<std::string> norms = {"none", "tokens", "sum"};
    choose("relative_positions", {"none", "buckets", "buckets_every_layer", "shaw", "rotary"});
    const int even = is("relative_positions", "rotary") ? 2 : 1;
    set("d_model", draw.between(2, 40));
    set("num_heads", draw.between(1, 3));
    set("head_dim", even * draw.between(1, 11));
    set("d_ff", draw.between(1, 40));
    set("memory_width", draw.chance(25) ? draw.between(1, 40) : 0);
    set("num_encoder_layers", whole("memory_width") ? 0 : draw.between(1, 2));
    set("num_decoder_layers", draw.between(1, 2));
    set("decoder_num_heads", draw.between(1, 3));
    set("decoder_head_dim", even * draw.between(1, 11));
    set("decoder_d_ff", draw.between(1, 40));
    set("source_vocab_size", draw.between(4, 60));
    // From 512 words on some sets rank them by integers; see vocabulary.h.
    const bool large = draw.chance(20);
    set("target_vocab_size", large ? draw.between(500, 900) : draw.between(4, 150));
    set("max_positions", draw.chance(50) ? 0 : draw.between(3, 30));
    set("has_positions", whole("max_positions") && draw.chance(70));
    choose("norm", {"layer", "annotated", "rms"});
    choose("norm_eps", {"1e-05", "1e-3", "0.1"});
    choose("norm_placement", placements);
    choose("decoder_norm_placement", placements);
    choose("activation", {"relu", "gelu", "gelu_tanh", "quick_gelu", "silu"});
    choose("source_embedding_norm", norms);
    choose("target_embedding_norm", norms);
    choose("source_scale", {"1", "4.5"});
    choose("target_scale", {"1", "4.5"});
    choose("residual_scale", {"1", "0.7"});
    for (const char* key :
         {"norm_bias", "encoder_final_norm", "decoder_final_norm", "attention_bias",
          "feed_forward_bias", "output_bias", "positions_every_layer", "share_encoder_layers",
          "share_decoder_layers", "gated_feed_forward", "scale_scores"})
        set(key, draw.below(2));
    set("relative_buckets", draw.between(4, 9));
    set("relative_max_distance", draw.between(6, 12));
    const int last = whole("target_vocab_size") - 1;
    for (const char* key : {"pad_id", "start_id", "eos_id"}) set(key, draw.between(0, last));
    for (const char* key : {"unplaced_id", "first_token", "last_token"})
        set(key, draw.chance(70) ? -1 : draw.between(0, last));
    if (whole("memory_width") && draw.chance(60)) {
        for (const char* key : {"num_heads", "head_dim", "d_ff"})
            set((EMBEDDED + key).c_str(), draw.between(1, 9));
        set((EMBEDDED + "d_model").c_str(), whole("memory_width"));
        set((EMBEDDED + "num_encoder_layers").c_str(), draw.between(1, 2));
        for (const char* key :
             {"norm", "norm_eps", "norm_placement", "activation", "residual_scale", "norm_bias",
              "encoder_final_norm", "attention_bias", "feed_forward_bias", "gated_feed_forward",
              "scale_scores"})
            values[EMBEDDED + key] = values[key];
    }
    values["suppress_tokens"] = draw.chance(60) ? "" : std::to_string(draw.between(0, last)) + ",0";
}

std::string Config::text() const {
    std::string all;
    for (auto& each : values) all += each.first + "=" + each.second + "\n";
    return all;
}

Weights::Weights(Draw& draw, const Config& config)
    : draw_(draw), config_(config),
      kind_(draw.any<Kind>(
          {Kind::float32, Kind::int8, Kind::int8, Kind::bfloat16, Kind::float16, Kind::mixed})),
      int8_(kind_ == Kind::int8), transposed_(draw.chance(20)) {
    const bool int8 = int8_;
    const int d = config.whole("d_model"), positions = config.whole("max_positions");
    const bool placed = config.is("has_positions", "1");
    const bool every_layer = config.is("positions_every_layer", "1");
    const bool encodes = !config.whole("memory_width"), embedded = config.embedded();
    for (const std::string side : {"source", "target"}) {
        if (side == "source" && !encodes) continue;
        const std::string name = side + "_embedding", norm_kind = side + "_embedding_norm";
        add(name + ".tokens.weight", config.whole(side + "_vocab_size"), d, int8);
        if (placed && !every_layer) add(name + ".positions.table", positions, d);
        if (config.is(norm_kind, "tokens")) norm(name + ".token_norm");
        if (config.is(norm_kind, "sum")) norm(name + ".norm");
    }
    if (placed && every_layer && encodes) add("encoder.positions.table", positions, d);
    for (const std::string stack : {"encoder", "decoder"}) {
        const bool decoder = stack == "decoder";
        if (!decoder && !encodes && !embedded) continue;
        of_ = !decoder && embedded ? EMBEDDED : "";
        const bool shared = of_.empty() && config.is("share_" + stack + "_layers", "1");
        const int layers = shared ? 1 : whole("num_" + stack + "_layers");
        for (int i = 0; i < layers; i++)
            layer(stack + ".layers." + std::to_string(i) + ".", decoder);
        relative(stack, "buckets", whole(decoder ? "decoder_num_heads" : "num_heads"), 0);
        if (is(stack + "_final_norm", "1")) norm(stack + ".norm");
    }
    of_ = "";
    linear("output_proj", config.whole("target_vocab_size"), d, "output_bias");
}

void Weights::layer(const std::string& name, bool decoder) {
    const int heads = whole(decoder ? "decoder_num_heads" : "num_heads");
    const int dim = whole(decoder ? "decoder_head_dim" : "head_dim");
    const int d = whole("d_model"), width = whole(decoder ? "decoder_d_ff" : "d_ff");
    attention(name, "self_attn", heads, dim, d);
    relative(name + "self_attn", "buckets_every_layer", heads, dim);
    relative(name + "self_attn", "shaw", heads, dim);
    if (decoder) attention(name, "cross_attn", heads, dim, config_.state_size());
    linear(name + "feed_forward.up_proj", width, d, "feed_forward_bias");
    if (is("gated_feed_forward", "1"))
        linear(name + "feed_forward.gate_proj", width, d, "feed_forward_bias");
    linear(name + "feed_forward.down_proj", d, width, "feed_forward_bias");
    norm(name + "feed_forward_residual.norm");
}

void Weights::attention(const std::string& name, const char* placed, int heads, int dim, int keys) {
    const int d = whole("d_model");
    linear(name + placed + ".q_proj", heads * dim, d, "attention_bias");
    for (const char* part : {".k_proj", ".v_proj"})
        linear(name + placed + part, heads * dim, keys, "attention_bias");
    linear(name + placed + ".out_proj", d, heads * dim, "attention_bias");
    norm(name + placed + "_residual.norm");
}

void Weights::relative(const std::string& name, const char* kind, int heads, int dim) {
    if (!of_.empty() || !is("relative_positions", kind)) return;
    if (is("relative_positions", "shaw"))
        add(name + ".relative.table", 2 * whole("relative_max_distance") + 1, dim);
    else add(name + ".relative.table", whole("relative_buckets"), heads);
}

void Weights::norm(const std::string& name) {
    add(name + ".weight", 1, whole("d_model"));
    if (is("norm_bias", "1") && !is("norm", "rms")) add(name + ".bias", 1, whole("d_model"));
}

void Weights::linear(const std::string& name, int outputs, int inputs, const char* bias) {
    add(name + ".weight", outputs, inputs, int8_);
    if (is(bias, "1")) add(name + ".bias", 1, outputs);
}

void Weights::add(const std::string& name, int rows, int columns, bool int8) {
    all_.emplace_back();
    Made& made = all_.back();
    made.name = name;
    const size_t size = (size_t)rows * columns;
    if (int8) {
        for (size_t i = 0; i < size; i++) made.whole.push_back((int8_t)draw_.between(-127, 127));
        for (int i = 0; i < rows; i++) made.scales.push_back(0.004f + 0.002f * draw_.real());
    } else {
        const Kind kind = kind_ != Kind::mixed
                              ? kind_
                              : draw_.any<Kind>({Kind::float32, Kind::bfloat16, Kind::float16});
        for (size_t i = 0; i < size; i++) made.values.push_back(value(kind));
    }
    const bool turned = transposed_ && rows > 1;
    made.tensor = {made.name.c_str(),
                   int8 ? (const void*)made.whole.data() : (const void*)made.values.data(),
                   int8 ? made.scales.data() : nullptr,
                   rows,
                   columns,
                   turned ? 1 : columns,
                   turned ? rows : 1,
                   0};
}

// In [-1, 1), of digits that the kind has.
float Weights::value(Kind kind) {
    const float real = draw_.real();
    const int digits = kind == Kind::bfloat16 ? 128 : 1024;
    return kind == Kind::float32 || kind == Kind::int8 ? real : std::trunc(real * digits) / digits;
}

void Weights::spoil(Draw& draw) {
    Made& made = all_[(size_t)draw.below((int)all_.size())];
    tfn_tensor& t = made.tensor;
    constexpr int64_t MOST = std::numeric_limits<int64_t>::max();
    switch (draw.below(12)) {
        case 0: t.name = nullptr; break;
        case 1: t.name = "nothing"; break;
        case 2: t.data = nullptr; break;
        case 3: t.rows--; break;
        case 4: t.columns--; break;
        case 5: t.rows = draw.any<int64_t>({0, -1, MOST, -MOST, int64_t(1) << 48}); break;
        case 6: t.columns = draw.any<int64_t>({0, -1, MOST, -MOST, int64_t(1) << 48}); break;
        case 7: t.row_stride = draw.any<int64_t>({-1, -MOST, MOST, MOST / 2}); break;
        case 8: t.column_stride = draw.any<int64_t>({-1, -MOST, MOST, MOST / 2}); break;
        case 9: t.row_stride = t.column_stride = 0; break;  // one value everywhere
        case 10:
            for (float& value : made.values)
                value = draw.any<float>({NAN, INFINITY, -INFINITY, 3e38f, 1e-45f, 0});
            break;
        case 11:
            for (float& value : made.scales) value = draw.any<float>({NAN, INFINITY, 3e38f, -1, 0});
            break;
    }
}

std::vector<tfn_tensor> Weights::table() const {
    std::vector<tfn_tensor> all;
    for (const Made& made : all_) all.push_back(made.tensor);
    return all;
}

}  // namespace driver
