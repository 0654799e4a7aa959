// Products of rows with packed weights, and with weights as they lie in a file.
#include <algorithm>
#include <cstring>

#include "check.h"

using namespace tfn;

Weights make_weights(const Kernels& kernels, Random& random, int n, int k, bool int8) {
    Weights w{n, k, (n + kernels.panel - 1) / kernels.panel, {}, {}, {}, {}, {}, {}, {}, {}};
    const int padded = (int)round_up(k, int8 ? kernels.depth : 1);
    const size_t columns = (size_t)w.panels * kernels.panel;
    w.packed.reserve(int8 ? 0 : columns * padded);
    w.integers.reserve(int8 ? columns * padded : 0);
    w.scales.reserve(columns);
    w.sums.reserve(columns);
    w.bias.reserve(columns);
    for (int column = 0; column < n; column++) {
        w.bias[column] = random.normal();
        w.scales[column] = 0.001f * (1 + random.below(20));
        for (int i = 0; i < k; i++) {
            const size_t at = packed_at(kernels, int8, padded, column, i);
            if (!int8) {
                w.values.push_back(w.packed[at] = random.normal());
                continue;
            }
            // The extremes are frequent: sums of pairs must not saturate.
            const int value = random.below(4) ? random.between(-127, 127) : 254 * random.below(2) - 127;
            w.integers[at] = (int8_t)value;
            w.sums[column] += value;
            w.values.push_back(value * w.scales[column]);
        }
    }
    w.form = {padded, int8 ? Values() : Values(w.packed.data()), int8 ? w.integers.data() : nullptr,
              w.scales.data(), w.sums.data()};
    return w;
}

Rows make_rows(const Kernels& kernels, const std::vector<float>& given, int m, int k, bool int8) {
    Rows rows{m, k, given, {}, {}, {}, std::vector<Quantization>(m), {}};
    const size_t ld = round_up(k, 16) + 16;
    const int padded = (int)round_up(k, kernels.depth), size = kernels.value_bytes;
    const size_t ldq = round_up(padded, 64) + 64;
    rows.floats.reserve(m * ld);
    rows.integers.reserve(m * ldq * size);
    for (int row = 0; row < m; row++) {
        std::copy_n(given.begin() + (size_t)row * k, k, rows.floats.data() + row * ld);
        char* q = rows.integers.data() + row * ldq * size;
        rows.how[row] = kernels.quantize(rows.floats.data() + row * ld, k, padded, q);
        for (int i = 0; i < k; i++) {
            double value = rows.floats[row * ld + i];
            if (int8) {
                int16_t wide;
                memcpy(&wide, q + i * size, 2);
                const bool is_signed = !strcmp(kernels.name, "neon_dot");
                const int integer = size == 2 ? wide : is_signed ? (int8_t)q[i] : (uint8_t)q[i];
                value = (double)rows.how[row].scale * (integer - rows.how[row].zero);
            }
            rows.values.push_back(value);
        }
    }
    rows.input = {rows.floats.data(), ld, rows.integers.data(), ldq, rows.how.data()};
    return rows;
}

double activation(Activation kind, double x) {
    switch (kind) {
        case Activation::none: return x;
        case Activation::relu: return x > 0 ? x : 0;
        case Activation::gelu: return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0)));
        case Activation::gelu_tanh:
            return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
        case Activation::quick_gelu: return x / (1 + std::exp(-1.702 * x));
        case Activation::silu: return x / (1 + std::exp(-x));
    }
    return x;
}

namespace {

std::vector<float> run(const Kernels& kernels, const Weights& w, const Input& input, int rows,
                       const std::vector<float>& before, Epilogue end, int first, int last) {
    std::vector<float> y(before);
    end.y = y.data();
    end.bias = w.bias.data();
    kernels.linear(w.form, input, rows, first, last, end);
    return y;
}

Input row_of(const Kernels& kernels, const Input& all, int row) {
    return {all.f32 + row * all.ld, all.ld,
            (const char*)all.quantized + row * all.ldq * kernels.value_bytes, all.ldq,
            all.rows + row};
}

void check_product(const Kernels& kernels, Checks& checks, Random& random, int m, int n, int k,
                   bool int8) {
    const Weights w = make_weights(kernels, random, n, k, int8);
    const Rows rows = make_rows(kernels, random.normals((size_t)m * k), m, k, int8);
    const size_t ld = n + random.below(5);
    Epilogue end{nullptr, ld, nullptr, n};
    end.then = (Then)random.below(3);
    if (end.then == Then::store) end.activation = (Activation)random.below(6);
    end.scale = end.then == Then::add ? 0.5f : 1.0f;
    const std::vector<float> before = random.normals(m * ld);
    const auto y = run(kernels, w, rows.input, m, before, end, 0, w.panels);
    const std::string name = std::string(int8 ? "int8 " : "float32 ") + std::to_string(m) + " x " +
                             std::to_string(n) + " x " + std::to_string(k);
    double worst = 0;
    for (int row = 0; row < m; row++)
        for (int column = 0; column < n; column++) {
            double sum = 0, size = 0;
            for (int i = 0; i < k; i++) {
                const double term = rows.values[(size_t)row * k + i] * w.values[(size_t)column * k + i];
                sum += term;
                size += std::fabs(term);
            }
            const double old = before[row * ld + column], bias = w.bias[column];
            double expected = activation(end.activation, sum + bias);
            if (end.then == Then::add) expected = old * end.scale + sum + bias;
            if (end.then == Then::multiply) expected = old * (sum + bias);
            const double margin = 1e-6 + (int8 ? 1e-6 : (k + 8) * 6e-8) * (size + 1) * (1 + std::fabs(old));
            worst = std::max(worst, std::fabs(y[row * ld + column] - expected) / margin);
        }
    checks.hold(worst <= 1, name + ": off by " + std::to_string(worst) + " margins");
    bool untouched = true;
    for (int row = 0; row < m; row++)
        for (size_t i = n; i < ld; i++) untouched = untouched && y[row * ld + i] == before[row * ld + i];
    checks.hold(untouched, name + ": columns behind the last are written");
    // A value depends on neither the rows nor the panels that share its call.
    const int cut = random.below(w.panels + 1), row = random.below(m);
    auto parts = run(kernels, w, rows.input, m, before, end, cut, w.panels);
    parts = run(kernels, w, rows.input, m, parts, end, 0, cut);
    checks.hold(parts == y, name + ": in two calls, cut at panel " + std::to_string(cut));
    const std::vector<float> own(before.begin() + row * ld, before.begin() + (row + 1) * ld);
    const auto alone = run(kernels, w, row_of(kernels, rows.input, row), 1, own, end, 0, w.panels);
    checks.hold(std::equal(alone.begin(), alone.end(), y.begin() + row * ld),
                name + ": row " + std::to_string(row) + " alone");
}

}  // namespace

void check_products(const Kernels& kernels, Checks& checks) {
    Random random(1);
    for (int int8 = 0; int8 < 2; int8++) {
        for (int m = 1; m <= 40; m++)
            check_product(kernels, checks, random, m, random.between(1, 140), random.between(1, 100),
                          int8);
        for (int m : {97, 130, 200})
            check_product(kernels, checks, random, m, 70, random.between(1, 200), int8);
        check_product(kernels, checks, random, 5, 33, 2048, int8);
        check_product(kernels, checks, random, 2, 5, 9000, int8);  // nearer to 32 bits
    }
}

void check_dots(const Kernels& kernels, Checks& checks) {
    Random random(2);
    for (int i = 0; i < 40; i++) {
        const int m = random.between(1, 10), n = random.between(1, 20), k = random.between(1, 100);
        const auto x = random.normals((size_t)m * k), w = random.normals((size_t)n * k);
        const auto bias = random.normals(n);
        std::vector<float> y((size_t)m * n), one(1);
        const Dots all{x.data(), (size_t)k, m, w.data(), (size_t)k, n, k, bias.data(), y.data(),
                       (size_t)n};
        kernels.dots(all);
        bool same = true;
        for (int row = 0; row < m; row++)
            for (int column = 0; column < n; column++) {
                double sum = bias[column];
                for (int j = 0; j < k; j++) sum += (double)x[row * k + j] * w[column * k + j];
                checks.close(y[row * n + column], sum, 1e-4, "dots");
                kernels.dots({x.data() + row * k, 0, 1, w.data() + column * k, 0, 1, k,
                              bias.data() + column, one.data(), 0});
                same = same && one[0] == y[row * n + column];
            }
        checks.hold(same, "dots: one at a time");
    }
}
