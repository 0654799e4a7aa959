// Relative positions of a self-attention: biases, vectors and rotations.
#pragma once
#include <vector>

#include "config.h"
#include "linear.h"

namespace tfn {

class RelativePositions {
public:
    RelativePositions() = default;
    // `name` is that of the module; `bidirectional` of an encoder.
    RelativePositions(const Kernels& kernels, Tensors& tensors, const std::string& name,
                      const Config& config, Heads heads, bool bidirectional);

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
    void load_biases(Tensors& tensors, const std::string& name, const Config& config,
                     bool bidirectional);

    Kind kind_ = Kind::none;
    Heads heads_;
    int nearest_ = 0, furthest_ = 0;  // distances, key minus query, that are told apart
    View<float> table_;  // biases [head][distance], vectors [distance][padded]
    std::vector<float> frequencies_;
};

// The bucket of every distance from -M to M, or to 0 in one direction. Source: T5, as in torch.
std::vector<int> bucket_lookup(int buckets, int max_distance, bool bidirectional);

}  // namespace tfn
