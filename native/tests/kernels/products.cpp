// Products of rows with packed weights, and with weights as they lie in a file.
#include <algorithm>
#include <cstring>

#include "check.h"

using namespace tfn;

Weights make_weights(const Kernels& kernels, Random& random, int n, int k, bool int8, int largest) {
    Weights w{n, k, (n + kernels.panel - 1) / kernels.panel, {}, {}, {}, {}, {}, {}, {}, {}, {}};
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
            const int value = random.below(4) ? random.between(-largest, largest)
                                              : largest * (2 * random.below(2) - 1);
            w.integers[at] = (int8_t)value;
            w.sums[column] += value;
            w.values.push_back(value * w.scales[column]);
        }
    }
    w.form = {padded,
              int8 ? Values() : Values(w.packed.data()),
              int8 ? w.integers.data() : nullptr,
              w.scales.data(),
              w.sums.data(),
              largest};
    if (int8 && kernels.pair_groups) {
        const size_t each = order_size(padded);
        w.order.reserve(w.panels * each);
        for (int panel = 0; panel < w.panels; panel++)
            kernels.pair_groups(w.form.int8 + (size_t)panel * padded * kernels.panel, padded,
                                largest, w.order.data() + panel * each);
        w.form.order = w.order.data();
    }
    return w;
}

Rows make_rows(const Kernels& kernels, const std::vector<float>& given, int m, int k, bool int8,
               int largest) {
    Rows rows{m, k, given, {}, {}, {}, std::vector<Quantization>(m), {}};
    const size_t ld = round_up(k, 16) + 16;
    const int padded = (int)round_up(k, kernels.depth), size = kernels.value_bytes;
    const size_t ldq = round_up(padded, 64) + 64;
    rows.floats.reserve(m * ld);
    rows.integers.reserve(m * ldq * size);
    for (int row = 0; row < m; row++) {
        std::copy_n(given.begin() + (size_t)row * k, k, rows.floats.data() + row * ld);
        char* q = rows.integers.data() + row * ldq * size;
        rows.how[row] = kernels.quantize(rows.floats.data() + row * ld, k, padded, largest, q);
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

void split_rows(const Kernels& kernels, Rows& rows) {
    if (!kernels.split) return;
    Input& input = rows.input;
    input.ldp = parts_size(rows.k);
    rows.parts.reserve((rows.m + SPLIT_ROWS - 1) / SPLIT_ROWS * input.ldp);
    input.parts = rows.parts.data();
    for (int row = 0; row < rows.m; row += SPLIT_ROWS)
        kernels.split(input.f32 + row * input.ld, input.ld, std::min(rows.m - row, SPLIT_ROWS),
                      rows.k, rows.parts.data() + row / SPLIT_ROWS * input.ldp);
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

enum class Form { floats, parts, int8 };

void check_product(const Kernels& kernels, Checks& checks, Random& random, int m, int n, int k,
                   Form form) {
    const bool int8 = form == Form::int8;
    const int largest = random.below(2) ? 127 : random.between(1, 64);
    const Weights w = make_weights(kernels, random, n, k, int8, largest);
    std::vector<float> given = random.normals((size_t)m * k);
    // The extremes are frequent, as with weights; some rows have one sign.
    for (float& value : given)
        if (!random.below(4)) value = random.below(2) ? 4.0f : -4.0f;
    for (int row = 0; row < m; row += 3)
        for (int i = 0; i < k; i++)
            given[(size_t)row * k + i] = std::fabs(given[(size_t)row * k + i]);
    Rows rows = make_rows(kernels, given, m, k, int8, largest);
    if (form == Form::parts) split_rows(kernels, rows);
    const size_t ld = n + random.below(5);
    Epilogue end{nullptr, ld, nullptr, n};
    end.then = (Then)random.below(3);
    if (end.then == Then::store) end.activation = (Activation)random.below(6);
    end.scale = end.then == Then::add ? 0.5f : 1.0f;
    const std::vector<float> before = random.normals(m * ld);
    const auto y = run(kernels, w, rows.input, m, before, end, 0, w.panels);
    const std::string name = std::string(int8                  ? "int8 "
                                         : form == Form::parts ? "parts "
                                                               : "float32 ") +
                             std::to_string(m) + " x " + std::to_string(n) + " x " +
                             std::to_string(k);
    double worst = 0;
    for (int row = 0; row < m; row++)
        for (int column = 0; column < n; column++) {
            double sum = 0, size = 0;
            for (int i = 0; i < k; i++) {
                const double term =
                    rows.values[(size_t)row * k + i] * w.values[(size_t)column * k + i];
                sum += term;
                size += std::fabs(term);
            }
            const double old = before[row * ld + column], bias = w.bias[column];
            double expected = activation(end.activation, sum + bias);
            if (end.then == Then::add) expected = old * end.scale + sum + bias;
            if (end.then == Then::multiply) expected = old * (sum + bias);
            const double margin =
                1e-6 + (int8 ? 1e-6 : (k + 8) * 6e-8) * (size + 1) * (1 + std::fabs(old));
            worst = std::max(worst, std::fabs(y[row * ld + column] - expected) / margin);
        }
    checks.hold(worst <= 1, name + ": off by " + std::to_string(worst) + " margins");
    bool untouched = true;
    for (int row = 0; row < m; row++)
        for (size_t i = n; i < ld; i++)
            untouched = untouched && y[row * ld + i] == before[row * ld + i];
    checks.hold(untouched, name + ": columns behind the last are written");
    // A value depends on neither the rows nor the panels that share its call.
    const int cut = random.below(w.panels + 1), row = random.below(m);
    auto parts = run(kernels, w, rows.input, m, before, end, cut, w.panels);
    parts = run(kernels, w, rows.input, m, parts, end, 0, cut);
    checks.hold(parts == y, name + ": in two calls, cut at panel " + std::to_string(cut));
    const std::vector<float> own(before.begin() + row * ld, before.begin() + (row + 1) * ld);
    Rows one{1, k, {}, {}, {}, {}, {}, row_of(kernels, rows.input, row)};
    if (form == Form::parts) split_rows(kernels, one);
    const auto alone = run(kernels, w, one.input, 1, own, end, 0, w.panels);
    checks.hold(std::equal(alone.begin(), alone.end(), y.begin() + row * ld),
                name + ": row " + std::to_string(row) + " alone");
}

// Values as trained models have them: some inputs and columns are large, others tiny.
void check_error(const Kernels& kernels, Checks& checks, Random& random, int m, int n, int k) {
    std::vector<float> given = random.normals((size_t)m * k), sizes(k, 1.0f);
    for (float& size : sizes) {
        if (!random.below(50)) size = 100;
        if (!random.below(50)) size = 1e-6f;
        if (!random.below(200)) size = 1e-30f;
    }
    for (size_t i = 0; i < given.size(); i++) given[i] *= sizes[i % k];
    Weights w = make_weights(kernels, random, n, k, false);
    for (int column = 0; column < n; column++) {
        const float size = !random.below(20) ? 4.0f : 0.04f;
        for (int i = 0; i < k; i++)
            w.packed[packed_at(kernels, false, k, column, i)] = w.values[(size_t)column * k + i] *=
                size;
    }
    Rows rows = make_rows(kernels, given, m, k, false);
    double errors[2] = {}, worst[2] = {};
    for (int parts = 0; parts < 2; parts++) {
        if (parts) split_rows(kernels, rows);
        const auto y = run(kernels, w, rows.input, m, std::vector<float>((size_t)m * n),
                           {nullptr, (size_t)n, nullptr, n}, 0, w.panels);
        for (int row = 0; row < m; row++)
            for (int column = 0; column < n; column++) {
                double sum = w.bias[column], size = std::fabs(sum);
                for (int i = 0; i < k; i++) {
                    const double term =
                        rows.values[(size_t)row * k + i] * w.values[(size_t)column * k + i];
                    sum += term;
                    size += std::fabs(term);
                }
                const double error = std::fabs(y[(size_t)row * n + column] - sum) / size;
                errors[parts] += error * error;
                worst[parts] = std::max(worst[parts], error);
            }
    }
    checks.hold(errors[1] <= errors[0] && worst[1] <= 1.5 * worst[0],
                "parts: errors " + std::to_string(std::sqrt(errors[1] / errors[0])) + " and " +
                    std::to_string(worst[1] / worst[0]) + " of those of float32, K " +
                    std::to_string(k));
}

// What is not finite stays so, and stays in its row or column.
void check_not_finite(const Kernels& kernels, Checks& checks, Random& random) {
    const int m = 37, n = 70, k = 75;
    Weights w = make_weights(kernels, random, n, k, false);
    const Epilogue end{nullptr, (size_t)n, nullptr, n};
    const std::vector<float> given = random.normals((size_t)m * k), before((size_t)m * n);
    const auto product = [&](const std::vector<float>& values) {
        Rows rows = make_rows(kernels, values, m, k, false);
        split_rows(kernels, rows);
        return run(kernels, w, rows.input, m, before, end, 0, w.panels);
    };
    const auto plain = product(given);
    for (float value :
         {INFINITY, -INFINITY, NAN, -NAN, float_of(0x7fffffff), float_of(0x7f800001)}) {
        const int row = random.below(m), column = random.below(n), i = random.below(k);
        float& weight = w.packed[packed_at(kernels, false, k, column, i)];
        for (bool of_rows : {false, true}) {
            std::vector<float> values = given;
            const float kept = weight;
            (of_rows ? values[(size_t)row * k + i] : weight) = value;
            const auto y = product(values);
            weight = kept;
            bool good = true;
            for (int at = 0; at < m * n; at++)
                good = good && ((of_rows ? at / n == row : at % n == column) ? !std::isfinite(y[at])
                                                                             : y[at] == plain[at]);
            checks.hold(good,
                        "parts: " + std::to_string(value) + (of_rows ? " in a row" : " as weight"));
        }
    }
}

// Every group is there once, and the four products of a pair's column fit into 16 bits for all that
// a row may have.
void check_pairs(const Kernels& kernels, Checks& checks, Random& random) {
    for (int largest : {1, 63, 64, 65, 127})
        for (int k : {4, 8, 60, 256, 700}) {
            const Weights w = make_weights(kernels, random, kernels.panel, k, true, largest);
            const int groups = k / PAIRED_GROUP, steps = std::min(255, 32767 / (2 * largest));
            const uint16_t* order = w.order.data();
            const std::vector<int> found(order + 1, order + 1 + groups);
            std::vector<int> sorted = found;
            std::sort(sorted.begin(), sorted.end());
            bool good = 2 * order[0] <= groups;
            for (int i = 0; i < groups; i++) good = good && sorted[i] == i;
            int highest = 0, lowest = 0;
            for (int pair = 0; good && pair < order[0]; pair++)
                for (int column = 0; column < kernels.panel; column++)
                    for (int half = 0; half < 2; half++) {
                        int most = 0, least = 0;
                        for (int i = 0; i < 4; i++) {
                            const int group = found[2 * pair + i / 2],
                                      at = group * PAIRED_GROUP + 2 * half + i % 2;
                            const int value =
                                w.integers[packed_at(kernels, true, k, column, at)] * steps;
                            (value > 0 ? most : least) += value;
                        }
                        highest = std::max(highest, most);
                        lowest = std::min(lowest, least);
                    }
            const bool fits = highest <= 32767 && lowest >= -32768;
            checks.hold(good && fits, "pairs of groups, K " + std::to_string(k));
            checks.hold(largest > 32 || order[0] == groups / 2, "pairs of small weights");
        }
}

}  // namespace

void check_products(const Kernels& kernels, Checks& checks) {
    Random random(1);
    for (Form form : {Form::floats, Form::parts, Form::int8}) {
        if (form == Form::parts && !kernels.split) continue;
        for (int m = 1; m <= 40; m++)
            check_product(kernels, checks, random, m, random.between(1, 140),
                          random.between(1, 100), form);
        for (int m : {97, 130, 200})
            check_product(kernels, checks, random, m, 70, random.between(1, 200), form);
        check_product(kernels, checks, random, 5, 33, 2048, form);
        check_product(kernels, checks, random, 2, 5, 9000, form);  // nearer to 32 bits
    }
    if (kernels.pair_groups) check_pairs(kernels, checks, random);
    if (!kernels.split) return;
    for (int k : {40, 256, 512, 1500}) check_error(kernels, checks, random, 40, 70, k);
    check_not_finite(kernels, checks, random);
}

void check_dots(const Kernels& kernels, Checks& checks) {
    Random random(2);
    for (int i = 0; i < 40; i++) {
        const int m = random.between(1, 10), n = random.between(1, 20), k = random.between(1, 100);
        const auto x = random.normals((size_t)m * k), w = random.normals((size_t)n * k);
        const auto bias = random.normals(n);
        std::vector<float> y((size_t)m * n), one(1);
        const Dots all{x.data(), (size_t)k, m,           w.data(), (size_t)k,
                       n,        k,         bias.data(), y.data(), (size_t)n};
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
