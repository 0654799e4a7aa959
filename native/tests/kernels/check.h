// Checks of kernels beside plain formulas in double precision.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "kernels/kernels.h"
#include "memory.h"

// Counts what was checked, and prints what does not hold.
class Checks {
public:
    explicit Checks(std::string name) : name_(std::move(name)) {}
    void hold(bool holds, const std::string& what) {
        count_++;
        if (holds || ++failed_ > 20) return;
        std::printf("%s: %s\n", name_.c_str(), what.c_str());
    }
    void close(double found, double expected, double margin, const std::string& what) {
        hold(std::fabs(found - expected) <= margin,
             what + ": " + std::to_string(found) + ", expected " + std::to_string(expected));
    }
    const std::string& name() const { return name_; }
    int count() const { return count_; }
    int failed() const { return failed_; }

private:
    std::string name_;
    int count_ = 0, failed_ = 0;
};

class Random {
public:
    explicit Random(unsigned seed) : engine_(seed) {}
    int below(int n) { return (int)(engine_() % (unsigned)n); }
    int between(int low, int high) { return low + below(high - low + 1); }
    float normal() { return normal_(engine_); }
    std::vector<float> normals(size_t n, float scale = 1) {
        std::vector<float> v(n);
        for (float& x : v) x = scale * normal();
        return v;
    }

private:
    std::mt19937 engine_;
    std::normal_distribution<float> normal_;
};

// Weights (N, K) and their packed form; int8 ones up to `largest`, with their scales.
struct Weights {
    int n, k, panels;
    std::vector<float> values;  // as they are multiplied
    tfn::Buffer<float> packed, scales, bias;
    tfn::Buffer<int8_t> integers;
    tfn::Buffer<int32_t> sums;
    tfn::Buffer<uint16_t> halves, order;
    tfn::Packed form;
};
Weights make_weights(const tfn::Kernels& kernels, Random& random, int n, int k, bool int8,
                     int largest = 127);
// Float32 weights of values that a type of 16 bits holds, and the same weights in that type.
Weights make_wide(const tfn::Kernels& kernels, Random& random, int n, int k, tfn::Half type);
Weights as_halves(const tfn::Kernels& kernels, const Weights& wide, tfn::Half type);

// Rows (M, K) as a product with int8 weights up to `largest` reads them, and the values that they
// stand for.
struct Rows {
    int m, k;
    std::vector<float> given;
    std::vector<double> values;
    tfn::Buffer<float> floats;
    tfn::Buffer<char> integers;
    std::vector<tfn::Quantization> how;
    tfn::Input input;
    tfn::Buffer<uint16_t> parts = {};
};
Rows make_rows(const tfn::Kernels& kernels, const std::vector<float>& given, int m, int k,
               bool int8, int largest = 127);
// Float32 rows as products of whole sources read them, if the set has parts.
void split_rows(const tfn::Kernels& kernels, Rows& rows);

double activation(tfn::Activation kind, double x);

void check_products(const tfn::Kernels& kernels, Checks& checks);
void check_dots(const tfn::Kernels& kernels, Checks& checks);
void check_halves(const tfn::Kernels& kernels, Checks& checks);
void check_conversions(Checks& checks);
void check_quantization(const tfn::Kernels& kernels, Checks& checks);
void check_rows(const tfn::Kernels& kernels, Checks& checks);
void check_attention(const tfn::Kernels& kernels, Checks& checks);
void check_vocabulary(const tfn::Kernels& kernels, Checks& checks);
void check_autotuner(Checks& checks);
void check_sums(Checks& checks);
