#include "relative.h"

#include <algorithm>
#include <cmath>

namespace tfn {

Lookup bucket_lookup(int buckets, int max_distance, bool bidirectional) {
    Lookup lookup;
    int each = bidirectional ? buckets / 2 : buckets, exact = each / 2;
    // In float32, as there: some distances at a boundary are in another bucket otherwise.
    float span = (float)std::log((double)max_distance / exact);
    for (int d = -max_distance; d <= (bidirectional ? max_distance : 0); d++) {
        int away = std::abs(d), bucket = away;
        if (away >= exact) {
            float steps = std::log((float)std::max(away, 1) / (float)exact) / span * (each - exact);
            bucket = std::min(exact + (int)steps, each - 1);
        }
        lookup.push_back((uint16_t)(bucket + (bidirectional && d > 0 ? each : 0)));
    }
    return lookup;
}

std::shared_ptr<const Lookup> Lookups::get(bool bidirectional) {
    const int most = config_.relative_max_distance, buckets = config_.relative_buckets;
    if (buckets < (bidirectional ? 4 : 2) || most <= buckets / (bidirectional ? 4 : 2)) return {};
    auto& made = made_[bidirectional];
    if (!made) made = std::make_shared<Lookup>(bucket_lookup(buckets, most, bidirectional));
    return made;
}

RelativePositions::RelativePositions(Tensors& tensors, const std::string& name,
                                     const Config& config, Heads heads, Lookups& lookups,
                                     bool bidirectional)
    : heads_(heads) {
    const int most = config.relative_max_distance;
    switch (config.relative_positions) {
        case Relative::none: return;
        case Relative::buckets:
        case Relative::buckets_every_layer:
            kind_ = Kind::biases;
            nearest_ = -most;
            furthest_ = bidirectional ? most : 0;
            buckets_ = lookups.get(bidirectional);
            if (buckets_) load_biases(tensors, name, config);
            else
                tensors.problem("'" + name +
                                "': too few buckets, or too short a distance for them");
            return;
        case Relative::shaw: {
            kind_ = Kind::vectors;
            nearest_ = -most;
            furthest_ = most;
            Tensor table = tensors.take(name + ".table", 2 * most + 1, heads.dim);
            if (!table.data) return;  // noted
            table_ = tensors.store.take<float>((size_t)(2 * most + 1) * heads.padded);
            if (tensors.store.filled()) return;
            for (int i = 0; i <= 2 * most; i++)
                table.copy_row(i, table_.data() + (size_t)i * heads.padded);
            return;
        }
        case Relative::rotary:
            kind_ = Kind::rotary;
            for (int i = 0; i < heads.dim; i += 2)
                frequencies_.push_back(1.0f / std::pow(10000.0f, (float)i / (float)heads.dim));
    }
}

// As many values as the parameter has: distances are numbers of a config, which cost nothing.
void RelativePositions::load_biases(Tensors& tensors, const std::string& name,
                                    const Config& config) {
    const size_t buckets = config.relative_buckets;
    Tensor table = tensors.take(name + ".table", buckets, heads_.count);
    if (!table.data) return;  // noted
    table_ = tensors.store.take<float>(buckets * heads_.count);
    if (tensors.store.filled()) return;
    for (int head = 0; head < heads_.count; head++)
        for (size_t i = 0; i < buckets; i++) table_[head * buckets + i] = table.at(i, head);
}

void RelativePositions::fill_bias(const Kernels& kernels, int head, int position, int n,
                                  const float* query, float scale, float* bias) const {
    // Distances of the keys are -position, ..., n - 1 - position; those beyond share an end's
    // value.
    const int from = std::max(-position, nearest_), to = std::min(n - 1 - position, furthest_);
    auto key = [&](int distance) { return std::clamp(distance + position, 0, n - 1); };
    const int first = key(from), last = key(std::max(to, from));
    if (kind_ == Kind::biases) {
        const float* biases = table_.data() + head * (table_.size() / heads_.count);
        const uint16_t* buckets = buckets_->data();
        for (int i = first; i <= last; i++)
            bias[i] = biases[buckets[std::clamp(i - position, nearest_, furthest_) - nearest_]];
    } else {
        const float* vectors = table_.data() + (size_t)(from - nearest_) * heads_.padded;
        kernels.dots({query, 0, 1, vectors, (size_t)heads_.padded, last - first + 1, heads_.padded,
                      nullptr, bias + first, 0});
        for (int i = first; i <= last; i++) bias[i] *= scale;
    }
    std::fill(bias, bias + first, bias[first]);
    std::fill(bias + last + 1, bias + n, bias[last]);
}

void RelativePositions::add_to_context(const float* weights, int position, int n,
                                       float* context) const {
    for (int key = 0; key < n; key++) {
        const int place = std::clamp(key - position, nearest_, furthest_) - nearest_;
        const float* vector = table_.data() + (size_t)place * heads_.padded;
        for (int i = 0; i < heads_.dim; i++) context[i] += weights[key] * vector[i];
    }
}

void RelativePositions::angles(int position, float* cosines, float* sines) const {
    for (size_t i = 0; i < frequencies_.size(); i++) {
        float angle = (float)position * frequencies_[i];
        cosines[i] = std::cos(angle);
        sines[i] = std::sin(angle);
    }
}

void RelativePositions::rotate(float* heads, Heads shape, const float* cosines,
                               const float* sines) {
    for (int head = 0; head < shape.count; head++, heads += shape.padded)
        for (int i = 0; i < shape.dim / 2; i++) {
            float first = heads[2 * i], second = heads[2 * i + 1];
            heads[2 * i] = first * cosines[i] - second * sines[i];
            heads[2 * i + 1] = first * sines[i] + second * cosines[i];
        }
}

}  // namespace tfn
