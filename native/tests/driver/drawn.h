// Drawn configs and weights for the engine's C interface.
#pragma once
#include <cstdint>
#include <deque>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "../../engine/abi.h"

namespace driver {

// Numbers that are the same on every machine.
class Draw {
public:
    explicit Draw(uint64_t seed) : engine_(seed) {}
    int below(int n) { return (int)(engine_() % (uint64_t)n); }
    int between(int least, int most) { return least + below(most - least + 1); }
    bool chance(int percent) { return below(100) < percent; }
    float real() { return (float)(engine_() >> 40) / (float)(1 << 23) - 1; }  // [-1, 1)
    template <class T>
    T any(const std::vector<T>& of) {
        return of[(size_t)below((int)of.size())];
    }

private:
    std::mt19937_64 engine_;
};

class Config {
public:
    explicit Config(Draw& draw);

    int whole(const std::string& key) const { return std::stoi(values.at(key)); }
    bool is(const std::string& key, const char* value) const { return values.at(key) == value; }
    int state_size() const {
        return whole("memory_width") ? whole("memory_width") : whole("d_model");
    }
    bool embedded() const { return values.count("encoder.d_model"); }
    std::string text() const;

    std::map<std::string, std::string> values;
};

// All weights that a config needs, of memory that is no larger than they are: in int8, or in
// float32 that 16 bits may hold, in all matrices or in some.
class Weights {
public:
    Weights(Draw& draw, const Config& config);
    // Some hostile change of one of them, whose memory stays large enough for its shape.
    void spoil(Draw& draw);

    std::vector<tfn_tensor> table() const;

private:
    struct Made {
        std::string name;
        std::vector<float> values, scales;
        std::vector<int8_t> whole;
        tfn_tensor tensor;
    };

    // Of the side whose weights are drawn.
    int whole(const std::string& key) const { return config_.whole(of_ + key); }
    bool is(const std::string& key, const char* value) const {
        return config_.is(of_ + key, value);
    }

    void add(const std::string& name, int rows, int columns, bool int8 = false);
    void norm(const std::string& name);
    void linear(const std::string& name, int outputs, int inputs, const char* bias);
    // Keys and values are made of so many values.
    void attention(const std::string& name, const char* placed, int heads, int dim, int keys);
    void layer(const std::string& name, bool decoder);
    void relative(const std::string& name, const char* kind, int heads, int dim);

    Draw& draw_;
    const Config& config_;
    std::string of_;  // what keys of the side begin with
    enum class Kind { float32, int8, bfloat16, float16, mixed };
    float value(Kind kind);

    const Kind kind_;
    const bool int8_, transposed_;
    std::deque<Made> all_;
};

}  // namespace driver
