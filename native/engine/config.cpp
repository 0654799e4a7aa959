#include "config.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <locale>
#include <map>
#include <sstream>

#include "problems.h"

namespace tfn {
namespace {

constexpr int MOST = 1 << 24;  // of any size
const std::string EMBEDDED = "encoder.";
const std::map<std::string, Placement> PLACEMENTS = {
    {"post", Placement::post}, {"pre", Placement::pre}, {"res_post", Placement::res_post}};

class Reader {
public:
    // Lines that begin with `prefix`, which is taken off; if it is empty, all that do not begin
    // with EMBEDDED.
    Reader(const std::string& text, const std::string& prefix) : prefix_(prefix) {
        std::istringstream lines(text);
        for (std::string line; std::getline(lines, line);) {
            const bool embedded = line.compare(0, EMBEDDED.size(), EMBEDDED) == 0;
            if (embedded == prefix.empty()) continue;
            line.erase(0, prefix.size());
            size_t at = line.find('=');
            if (at == std::string::npos) problems_.add("config: no '=' in '" + line + "'");
            else if (!values_.emplace(line.substr(0, at), line.substr(at + 1)).second)
                problems_.add("config: key '" + prefix + line.substr(0, at) + "' is given twice");
        }
    }

    bool empty() const { return values_.empty(); }
    void whole(const char* key, int& to, int least, int most = MOST) {
        std::string text;
        if (!take(key, text)) return;
        if (!number(text, to) || to < least || to > most)
            wrong(key, text, "an integer from " + std::to_string(least));
    }
    void real(const char* key, float& to) {
        std::string text;
        if (!take(key, text)) return;
        std::istringstream whole(text);
        whole.imbue(std::locale::classic());  // a point, whatever the process's language is
        if (!(whole >> std::noskipws >> to) || whole.peek() != EOF || !std::isfinite(to))
            wrong(key, text, "a number");
    }
    void flag(const char* key, bool& to) {
        std::string text;
        if (!take(key, text)) return;
        if (text != "0" && text != "1") wrong(key, text, "0 or 1");
        to = text == "1";
    }
    template <class E>
    void choice(const char* key, E& to, const std::map<std::string, E>& known) {
        std::string text, names;
        if (!take(key, text)) return;
        auto found = known.find(text);
        if (found != known.end()) {
            to = found->second;
            return;
        }
        for (auto& each : known) names += (names.empty() ? "" : ", ") + each.first;
        wrong(key, text, "one of " + names);
    }
    void wholes(const char* key, std::vector<int>& to, int below) {
        std::string text;
        if (!take(key, text)) return;
        std::istringstream parts(text);
        for (std::string part; std::getline(parts, part, ',');) {
            int value = 0;
            if (number(part, value) && value >= 0 && value < below) to.push_back(value);
            else wrong(key, part, "ids below " + std::to_string(below));
        }
    }
    void finish() {
        for (auto& each : values_)
            problems_.add("config: unknown key '" + prefix_ + each.first + "'");
        problems_.raise();
    }

private:
    bool take(const char* key, std::string& text) {
        auto found = values_.find(key);
        if (found == values_.end()) {
            problems_.add("config: missing key '" + prefix_ + key + "'");
            return false;
        }
        text = found->second;
        values_.erase(found);
        return true;
    }
    static bool number(const std::string& text, int& to) {
        char* end = nullptr;
        long value = std::strtol(text.c_str(), &end, 10);
        if (text.empty() || *end || value < -MOST || value > MOST) return false;
        to = (int)value;
        return true;
    }
    void wrong(const char* key, const std::string& text, const std::string& expected) {
        problems_.add("config: " + prefix_ + key + " is '" + text + "'; expected " + expected);
    }

    const std::string prefix_;
    std::map<std::string, std::string> values_;
    Problems problems_;
};

// What an encoder has, of ids or of embeddings.
void read_encoder(Reader& r, Config& c) {
    r.whole("d_model", c.d_model, 1, 1 << 16);
    r.whole("num_heads", c.num_heads, 1, 1 << 12);
    r.whole("head_dim", c.head_dim, 1, 1 << 12);
    r.whole("d_ff", c.d_ff, 1, 1 << 18);
    r.whole("num_encoder_layers", c.num_encoder_layers, 0, 1 << 10);
    r.choice(
        "norm", c.norm,
        {{"layer", NormKind::layer}, {"annotated", NormKind::annotated}, {"rms", NormKind::rms}});
    r.choice("norm_placement", c.norm_placement, PLACEMENTS);
    r.choice("activation", c.activation,
             {{"relu", Activation::relu},
              {"gelu", Activation::gelu},
              {"gelu_tanh", Activation::gelu_tanh},
              {"quick_gelu", Activation::quick_gelu},
              {"silu", Activation::silu}});
    r.real("norm_eps", c.norm_eps);
    r.real("residual_scale", c.residual_scale);
    r.flag("norm_bias", c.norm_bias);
    r.flag("encoder_final_norm", c.encoder_final_norm);
    r.flag("attention_bias", c.attention_bias);
    r.flag("feed_forward_bias", c.feed_forward_bias);
    r.flag("gated_feed_forward", c.gated_feed_forward);
    r.flag("scale_scores", c.scale_scores);
}

void read_sizes(Reader& r, Config& c) {
    r.whole("num_decoder_layers", c.num_decoder_layers, 1, 1 << 10);
    r.whole("decoder_num_heads", c.decoder_num_heads, 1, 1 << 12);
    r.whole("decoder_head_dim", c.decoder_head_dim, 1, 1 << 12);
    r.whole("decoder_d_ff", c.decoder_d_ff, 1, 1 << 18);
    r.whole("source_vocab_size", c.source_vocab_size, 1);
    r.whole("target_vocab_size", c.target_vocab_size, 1);
    r.whole("memory_width", c.memory_width, 0, 1 << 16);
    r.whole("max_positions", c.max_positions, 0);
    r.whole("relative_buckets", c.relative_buckets, 1, 1 << 16);
    r.whole("relative_max_distance", c.relative_max_distance, 1, 1 << 16);
}

void read_kinds(Reader& r, Config& c) {
    const std::map<std::string, EmbeddingNorm> embedding_norms = {{"none", EmbeddingNorm::none},
                                                                  {"tokens", EmbeddingNorm::tokens},
                                                                  {"sum", EmbeddingNorm::sum}};
    r.choice("decoder_norm_placement", c.decoder_norm_placement, PLACEMENTS);
    r.choice("source_embedding_norm", c.source_embedding_norm, embedding_norms);
    r.choice("target_embedding_norm", c.target_embedding_norm, embedding_norms);
    r.choice("relative_positions", c.relative_positions,
             {{"none", Relative::none},
              {"buckets", Relative::buckets},
              {"buckets_every_layer", Relative::buckets_every_layer},
              {"shaw", Relative::shaw},
              {"rotary", Relative::rotary}});
}

void read_flags(Reader& r, Config& c) {
    r.real("source_scale", c.source_scale);
    r.real("target_scale", c.target_scale);
    r.flag("decoder_final_norm", c.decoder_final_norm);
    r.flag("output_bias", c.output_bias);
    r.flag("has_positions", c.has_positions);
    r.flag("positions_every_layer", c.positions_every_layer);
    r.flag("share_encoder_layers", c.share_encoder_layers);
    r.flag("share_decoder_layers", c.share_decoder_layers);
}

void read_ids(Reader& r, Config& c) {
    const int last = c.target_vocab_size - 1;
    r.whole("unplaced_id", c.unplaced_id, -1, last);
    r.whole("pad_id", c.pad_id, 0, MOST);
    r.whole("start_id", c.start_id, 0, last);
    r.whole("eos_id", c.eos_id, 0, last);
    r.whole("first_token", c.first_token, -1, last);
    r.whole("last_token", c.last_token, -1, last);
    r.wholes("suppress_tokens", c.suppress_tokens, c.target_vocab_size);
}

}  // namespace

Config Config::parse(const std::string& text) {
    Reader reader(text, "");
    Config config;
    read_encoder(reader, config);
    read_sizes(reader, config);
    read_kinds(reader, config);
    read_flags(reader, config);
    read_ids(reader, config);
    reader.finish();
    if ((config.num_encoder_layers == 0) != (config.memory_width > 0))
        throw Error("config: a model has encoder layers, or else a memory_width");
    Reader of_embedded(text, EMBEDDED);
    if (!of_embedded.empty()) {
        Config encoder;
        read_encoder(of_embedded, encoder);
        of_embedded.finish();
        if (encoder.num_encoder_layers == 0 || encoder.d_model != config.memory_width)
            throw Error(
                "config: an encoder of embeddings has layers, whose states have as many "
                "values as memory_width says");
        config.embedded = std::make_shared<const Config>(encoder);
    }
    if (config.relative_positions == Relative::rotary &&
        (config.head_dim % 2 || config.decoder_head_dim % 2))
        throw Error("config: rotary positions need an even head_dim and decoder_head_dim");
    return config;
}

}  // namespace tfn
