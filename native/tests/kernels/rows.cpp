// Work on single rows.
#include <algorithm>
#include <limits>

#include "check.h"

using namespace tfn;

namespace {

// Two digits stand for a row as nearly as they say, and nothing is said of what is not finite.
void check_digits(const Kernels& kernels, Checks& checks) {
    if (!kernels.digits) return;
    Random random(4);
    for (int i = 0; i < 300; i++) {
        const int k = random.between(1, 300), padded = (int)round_up(k, kernels.depth);
        const float size = std::pow(10.0f, (float)random.between(-20, 20));
        std::vector<float> x = random.normals(k, size);
        if (i % 50 == 7) std::fill(x.begin(), x.end(), 0.0f);
        std::vector<int8_t> first(padded, 9), second(padded, 9);
        const Digits said = kernels.digits(x.data(), k, padded, first.data(), second.data());
        double error = 0, of_first = 0, of_second = 0, zeros = 0;
        for (int j = 0; j < padded; j++) {
            const double one = (double)said.scale * first[j],
                         other = (double)said.scale * second[j] / DIGIT;
            if (j >= k) zeros += std::fabs(one) + std::fabs(other);
            else error += (x[j] - one - other) * (x[j] - one - other);
            of_first += one * one;
            of_second += other * other;
        }
        const double length = std::sqrt(of_first) + std::sqrt(of_second),
                     rounding = 6 * 0x1p-24 * length;
        checks.hold(zeros == 0, "digits behind a row");
        checks.hold(said.length >= length && said.length <= 1.001 * length + 1e-30,
                    "length of digits");
        checks.hold(said.second >= std::sqrt(of_second) &&
                        said.second <= 1.001 * std::sqrt(of_second) + 1e-30,
                    "length of second digits");
        checks.hold(said.error + rounding >= std::sqrt(error) &&
                        said.error <= 1.001 * std::sqrt(error) + rounding + 1e-30,
                    "error of digits: " + std::to_string(said.error / std::sqrt(error)));
        checks.hold(std::sqrt(error) <= length / 2e3 + 1e-30, "digits are about 16 bits");
        for (float strange : {INFINITY, -INFINITY, NAN}) {
            x[random.below(k)] = strange;
            const Digits of_strange =
                kernels.digits(x.data(), k, padded, first.data(), second.data());
            checks.hold(!std::isfinite(of_strange.error), "digits of a row that is not finite");
        }
    }
}

}  // namespace

void check_quantization(const Kernels& kernels, Checks& checks) {
    check_digits(kernels, checks);
    Random random(3);
    for (int i = 0; i < 300; i++) {
        const int k = random.between(1, 300);
        const float size = std::pow(10.0f, (float)random.between(-20, 20));
        std::vector<float> x = random.normals(k, size);
        if (i % 3 == 1)
            for (float& v : x) v = std::fabs(v);
        if (i % 3 == 2)
            for (float& v : x) v = -std::fabs(v);
        if (i % 50 == 7) std::fill(x.begin(), x.end(), 0.0f);
        const Rows rows = make_rows(kernels, x, 1, k, true);
        const auto range = std::minmax_element(x.begin(), x.end());
        const double span = std::max(0.0f, *range.second) - std::min(0.0f, *range.first);
        // Half a step, and what rounding of the row's zero costs: no worse than 8 bits of its
        // range.
        double length = 0, error = 0, worst = 0;
        for (int j = 0; j < k; j++) {
            const double off = rows.values[j] - x[j];
            worst = std::max(worst, std::fabs(off));
            length += rows.values[j] * rows.values[j];
            error += off * off;
        }
        checks.hold(worst <= span / 255 * 1.001 + 1e-30,
                    "quantised row is off by " + std::to_string(worst / span * 255) + " steps");
        float said[2];
        kernels.quantization_error(x.data(), rows.input.quantized, rows.how[0], k, &said[0],
                                   &said[1]);
        checks.hold(said[0] >= std::sqrt(length) && said[0] <= std::sqrt(length) * 1.00001 + 1e-30,
                    "length of a quantised row");
        checks.hold(said[1] >= std::sqrt(error) && said[1] <= std::sqrt(error) * 1.00001 + 1e-30,
                    "error of a quantised row");
    }
    // Of values that are not finite nothing is said but that it is not known.
    const float infinite = std::numeric_limits<float>::infinity();
    for (float strange : {infinite, -infinite}) {
        std::vector<float> x = random.normals(40);
        x[7] = strange;
        const Rows rows = make_rows(kernels, x, 1, 40, true);
        float said[2];
        kernels.quantization_error(x.data(), rows.input.quantized, rows.how[0], 40, &said[0],
                                   &said[1]);
        checks.hold(std::abs((int64_t)rows.how[0].zero) <= 1 << 16,
                    "zero of a row that is not finite");
        checks.hold(!std::isfinite(said[1]), "error of a row that is not finite");
    }
}

namespace {

void check_norm(const Kernels& kernels, Checks& checks, Random& random) {
    const int d = random.between(2, 100), padded = (int)round_up(d, 16);
    const auto x = random.normals(padded), weight = random.normals(padded),
               bias = random.normals(padded);
    const auto kind = (NormKind)random.below(3);
    const bool biased = random.below(2);
    std::vector<float> y(padded, 7);
    kernels.norm(kind, 1e-5f, weight.data(), biased ? bias.data() : nullptr, x.data(), y.data(), d,
                 padded);
    double mean = 0, squares = 0;
    for (int i = 0; i < d && kind != NormKind::rms; i++) mean += x[i] / (double)d;
    for (int i = 0; i < d; i++) squares += (x[i] - mean) * (x[i] - mean);
    const double divisor = kind == NormKind::annotated ? std::sqrt(squares / (d - 1)) + 1e-5
                                                       : std::sqrt(squares / d + 1e-5);
    double worst = 0;
    for (int i = 0; i < d; i++)
        worst = std::max(
            worst, std::fabs((x[i] - mean) / divisor * weight[i] + (biased ? bias[i] : 0) - y[i]));
    checks.hold(worst < 1e-4, "norm is off by " + std::to_string(worst));
    checks.hold(std::all_of(y.begin() + d, y.end(), [](float v) { return v == 0; }),
                "norm: padding");
}

void check_choices(const Kernels& kernels, Checks& checks, Random& random) {
    const int n = random.between(1, 700), many = random.between(1, std::min(n, 9));
    auto x = random.normals(n);
    if (random.below(2))
        for (float& v : x) v = std::round(v);  // ties
    std::vector<int> order(n);
    for (int i = 0; i < n; i++) order[i] = i;
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return x[a] > x[b]; });
    checks.hold(kernels.argmax(x.data(), n) == order[0], "argmax of " + std::to_string(n));
    std::vector<float> values(many);
    std::vector<int32_t> ids(many);
    kernels.top(x.data(), n, many, values.data(), ids.data());
    checks.hold(std::equal(ids.begin(), ids.end(), order.begin()), "top of " + std::to_string(n));
    double sum = 0;
    for (float v : x) sum += std::exp((double)v);
    checks.close(kernels.log_sum_exp(x.data(), n), std::log(sum), 2e-6, "log_sum_exp");
    // Of any size, rising and falling far, and with banned ones.
    double most = -INFINITY;
    for (int i = 0; i < n; i++) {
        x[i] = random.below(9) ? 200 * x[i] : -INFINITY;
        most = std::max(most, (double)x[i]);
    }
    sum = 0;
    for (float v : x) sum += most > -INFINITY ? std::exp(v - most) : 0;
    const double found = kernels.log_sum_exp(x.data(), n);
    if (most > -INFINITY)
        checks.close(found, most + std::log(sum), 2e-4, "log_sum_exp of far values");
    else checks.hold(found == -INFINITY, "log_sum_exp of nothing");
}

}  // namespace

void check_rows(const Kernels& kernels, Checks& checks) {
    Random random(4);
    for (int i = 0; i < 200; i++) {
        check_norm(kernels, checks, random);
        check_choices(kernels, checks, random);
    }
}

// A head of a query, with keys and values drawn for it.
struct Head {
    int n;
    float size;
    std::vector<float> query, bias, weights, context;
    std::vector<std::vector<float>> memory;
    std::vector<const float*> positions;

    Head(Random& random, int dim, bool biased) {
        n = random.between(1, 50);
        size = random.below(4) ? 1.0f : 30.0f;  // weights of nearly 0 and 1 too
        const int room = (int)round_up(n, MOST_LANES);
        query = random.normals(dim, size);
        if (biased) bias = random.normals(room);
        // Each in memory of its own, so that a read beside it is found by sanitizers.
        for (int at = 0; at < n; at++) memory.push_back(random.normals(2 * dim));
        for (const auto& position : memory) positions.push_back(position.data());
        weights.resize(room);
        context.resize(dim);
    }
    Attend attend() {
        const size_t dim = query.size();
        return {query.data(),
                positions.data(),
                0,
                dim,
                n,
                (int)dim,
                0.25f,
                bias.empty() ? nullptr : bias.data(),
                weights.data(),
                context.data(),
                true};
    }
    void check(Checks& checks) const {
        const int dim = (int)query.size();
        std::vector<double> scores(n), expected(dim);
        double most = -1e300, total = 0, worst = 0;
        for (int at = 0; at < n; at++) {
            const float* key = positions[at];
            for (int j = 0; j < dim; j++) scores[at] += (double)query[j] * key[j];
            scores[at] = scores[at] * 0.25 + (bias.empty() ? 0 : bias[at]);
            most = std::max(most, scores[at]);
        }
        for (double& s : scores) total += s = std::exp(s - most);
        for (int at = 0; at < n; at++) {
            scores[at] /= total;
            worst = std::max(worst, std::fabs(scores[at] - weights[at]));
            for (int j = 0; j < dim; j++) expected[j] += scores[at] * positions[at][dim + j];
        }
        checks.hold(worst < 2e-5 * size, "attention weights are off by " + std::to_string(worst));
        for (int j = 0; j < dim; j++)
            checks.close(context[j], expected[j], 5e-5 * size, "attention's context");
    }
};

// One head of a source: all of its queries, or some of them.
struct SourceHead {
    int n, dim;
    float size;
    Buffer<float> queries, projected, keys, values;

    SourceHead(const Kernels& kernels, Random& random)
        : n(random.between(1, 150)), dim(kernels.lanes * random.between(1, 9)),
          size(random.below(4) ? 1.0f : 30.0f) {
        const int columns = (int)round_up(n, kernels.panel);
        queries.reserve(n * dim);
        projected.reserve(2 * n * dim);
        keys.reserve(columns * dim);
        values.reserve(round_up(dim, kernels.panel) * n);
        for (int i = 0; i < n * dim; i++) queries[i] = size * random.normal();
        for (int i = 0; i < 2 * n * dim; i++) projected[i] = random.normal();
        kernels.pack_source(projected.data(), projected.data() + dim, 2 * dim, n, dim, keys.data(),
                            values.data());
    }
    // Contexts of `rows` queries from `first` on.
    std::vector<float> contexts(const Kernels& kernels, int first, int rows) const {
        const size_t lds = round_up(n, kernels.panel) + 16;
        Buffer<float> scores(lds * rows), factors(rows);
        Buffer<uint16_t> parts((size_t)((rows + SPLIT_ROWS - 1) / SPLIT_ROWS) *
                               parts_size(std::max(n, dim)));
        std::vector<float> context((size_t)rows * dim);
        kernels.attend_source({queries.data() + first * dim, (size_t)dim, rows, keys.data(),
                               values.data(), n, dim, 0.25f, scores.data(), lds, factors.data(),
                               parts.data(), context.data(), (size_t)dim});
        return context;
    }
    void check(Checks& checks, const std::vector<float>& found) const {
        double worst = 0;
        for (int row = 0; row < n; row++) {
            std::vector<double> scores(n), expected(dim);
            double most = -1e300, total = 0;
            for (int at = 0; at < n; at++) {
                for (int j = 0; j < dim; j++)
                    scores[at] += (double)queries[row * dim + j] * projected[at * 2 * dim + j];
                most = std::max(most, scores[at] *= 0.25);
            }
            for (double& s : scores) total += s = std::exp(s - most);
            for (int at = 0; at < n; at++)
                for (int j = 0; j < dim; j++)
                    expected[j] += scores[at] / total * projected[at * 2 * dim + dim + j];
            for (int j = 0; j < dim; j++)
                worst = std::max(worst, std::fabs(expected[j] - found[row * dim + j]));
        }
        checks.hold(worst < 5e-5 * size, "a source's context is off by " + std::to_string(worst));
    }
};

void check_source_attention(const Kernels& kernels, Checks& checks) {
    Random random(6);
    for (int i = 0; i < 30; i++) {
        const SourceHead head(kernels, random);
        const auto all = head.contexts(kernels, 0, head.n);
        head.check(checks, all);
        for (int some = 0; some < 4; some++) {
            const int first = random.below(head.n), rows = random.between(1, head.n - first);
            const auto part = head.contexts(kernels, first, rows);
            checks.hold(std::equal(part.begin(), part.end(), all.begin() + first * head.dim),
                        "a query's context depends on the queries beside");
        }
    }
}

void check_attention(const Kernels& kernels, Checks& checks) {
    check_source_attention(kernels, checks);
    Random random(5);
    for (int i = 0; i < 60; i++) {
        const int dim = kernels.lanes * random.between(1, 9);
        const bool biased = random.below(2);
        std::vector<Head> heads;
        for (int left = random.between(1, MOST_TOGETHER); left > 0; left--)
            heads.emplace_back(random, dim, biased);
        std::vector<Attend> all;
        for (Head& head : heads) all.push_back(head.attend());
        kernels.attend(all.data(), (int)all.size());
        for (Head& head : heads) {
            head.check(checks);
            const std::vector<float> weights = head.weights, context = head.context;
            const Attend alone = head.attend();
            kernels.attend(&alone, 1);
            checks.hold(
                std::equal(context.begin(), context.end(), head.context.begin()) &&
                    std::equal(weights.begin(), weights.begin() + head.n, head.weights.begin()),
                "attention depends on the heads beside");
        }
    }
}
