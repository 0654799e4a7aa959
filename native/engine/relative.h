// Relative positions of a self-attention: biases, vectors and rotations.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "config.h"
#include "linear.h"

namespace tfn {

// The bucket of every distance from -M to M, or to 0 in one direction. Source: T5, as in torch.
using Lookup = std::vector<uint16_t>;
Lookup bucket_lookup(int buckets, int max_distance, bool bidirectional);

// Those of a model's encoder and decoder, which their layers share; made when they are first
// needed.
class Lookups {
public:
    explicit Lookups(const Config& config) : config_(config) {}
    // None if there are too few buckets, or too short a distance for them.
    std::shared_ptr<const Lookup> get(bool bidirectional);

private:
    const Config& config_;
    std::shared_ptr<const Lookup> made_[2];
};

class RelativePositions {
public:
    RelativePositions() = default;
    // `name` is that of the module; `bidirectional` of an encoder.
    RelativePositions(Tensors& tensors, const std::string& name, const Config& config, Heads heads,
                      Lookups& lookups, bool bidirectional);

    bool adds_bias() const { return kind_ != Kind::none && kind_ != Kind::rotary; }
    bool adds_to_context() const { return kind_ == Kind::vectors; }
    bool rotates() const { return kind_ == Kind::rotary; }

    // What is added to the scaled scores of a query at `position` with n keys, into `bias` (n,).
    void fill_bias(const Kernels& kernels, int head, int position, int n, const float* query,
                   float scale, float* bias) const;
    // Adds the vectors of the distances, by their weights (n,).
    void add_to_context(const float* weights, int position, int n, float* context) const;
    // Cosine and sine of each pair of a head at a position, (dim / 2) each.
    void angles(int position, float* cosines, float* sines) const;
    static void rotate(float* heads, Heads shape, const float* cosines, const float* sines);

private:
    enum class Kind { none, biases, vectors, rotary };
    void load_biases(Tensors& tensors, const std::string& name, const Config& config);

    Kind kind_ = Kind::none;
    Heads heads_;
    int nearest_ = 0, furthest_ = 0;         // distances, key minus query, that are told apart
    View<float> table_;                      // biases [head][bucket], vectors [distance][padded]
    std::shared_ptr<const Lookup> buckets_;  // of every distance, of biases
    std::vector<float> frequencies_;
};

}  // namespace tfn
