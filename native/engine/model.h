// A model's weights, and its encoder if it has one.
#pragma once
#include <memory>
#include <vector>

#include "block.h"
#include "embedding.h"
#include "pool.h"
#include "vocabulary.h"

namespace tfn {

struct EncoderLayer {
    Attention self;
    FeedForward feed_forward;
};

struct DecoderLayer {
    Attention self, cross;
    Linear cross_key_value;
    FeedForward feed_forward;
};

// Keys and values of sources that were encoded together: [layer][block].
struct Memory {
    Buffer<float> values;
    size_t layer_size = 0, block_size = 0;
};

// One source of them.
struct Encoded {
    std::shared_ptr<Memory> memory;
    size_t first = 0;  // block; a source begins with one of its own
    int length = 0;
    const float* block(int i) const {  // of layer 0
        return memory->values.data() + (first + i) * memory->block_size;
    }
};

// Ids of the encoder, or states in place of them, or embeddings that it makes states of.
struct Sources {
    const int32_t* ids;      // of all, one after another
    const float* states;     // the same, rows of Config::state_size() values
    const int32_t* lengths;  // of each
    int count;
    bool embeddings = false;  // `states` are, of an encoder's d_model values, which is as many
};

class Model {
public:
    Model(const Config& config, Tensors& tensors, const Kernels& kernels, int threads);

    const Config config;
    const Kernels& kernels;
    const Heads decoder_heads;
    std::vector<EncoderLayer> encoder;
    std::vector<DecoderLayer> decoder;
    Embedding source_embedding, target_embedding;
    RelativePositions encoder_relative, decoder_relative;  // of all layers
    Norm encoder_norm, decoder_norm;
    Vocabulary vocabulary;

    BlockLayout memory_layout() const { return {decoder_heads}; }
    const DecoderLayer& decoder_layer(int i) const { return decoder[i % decoder.size()]; }

    // Encoder states of all sources into `states`, (positions, E), if there is room for them.
    std::vector<Encoded> encode(Workspace& w, const Sources& sources,
                                float* states = nullptr) const;
    bool has_encoder() const { return config.takes_ids() || config.embedded; }
    // Raises what is wrong with ids, lengths.
    void check(const Sources& sources) const;

    // What the weights were packed into.
    void keep(std::unique_ptr<Store> store) { store_ = std::move(store); }
    const Store& store() const { return *store_; }

    Pool workspaces;

private:
    void run_encoder(Workspace& w, const Sources& sources, int rows) const;
    void take_states(Workspace& w, const Sources& sources, int rows) const;
    void remember(Workspace& w, const Sources& sources, int rows, Memory& memory,
                  size_t first) const;

    std::unique_ptr<Store> store_;
    PositionTable layer_positions_;
};

// A workspace for the span of a call.
class Borrowed {
public:
    explicit Borrowed(Model& model, const int32_t* cancelled = nullptr)
        : pool_(model.workspaces), workspace_(pool_.take()) {
        workspace_->cancelled = cancelled;
    }
    ~Borrowed() {
        workspace_->cancelled = nullptr;
        pool_.give_back(std::move(workspace_));
    }
    Workspace& operator*() { return *workspace_; }

private:
    Pool& pool_;
    std::unique_ptr<Workspace> workspace_;
};

}  // namespace tfn
