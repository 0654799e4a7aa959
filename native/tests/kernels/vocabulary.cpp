// The token of the largest logit beside the logits themselves, where integers hardly tell them
// apart.
#include "vocabulary.h"

#include <algorithm>
#include <set>

#include "check.h"

using namespace tfn;

namespace {

struct Case {
    int size, d, rows, threads;
    std::vector<float> weight, x, bias;  // (V, d), (rows, d), (V,)
    std::vector<int> suppressed;
    std::vector<int8_t> integers;  // of an int8 model
    std::vector<float> scales;
};

int sums_of_integers = 0;  // that differ from those of floats

// Whether what `rank` gave of rows, with these biases, it gives of each row alone.
bool same_alone(const Vocabulary& vocabulary, Workspace& w, const float* x, size_t ld, int rows,
                const Ranked& together) {
    const int count = together.count;
    bool same = true;
    for (int row = 0; row < rows; row++) {
        std::vector<float> values(count);
        std::vector<int32_t> ids(count);
        double log_sum = 0;
        vocabulary.rank(w, x + row * ld, 1,
                        {count, together.bias, values.data(), ids.data(), &log_sum});
        const size_t at = (size_t)row * count;
        same = same && std::equal(values.begin(), values.end(), together.values + at) &&
               (!(log_sum == log_sum) || log_sum == together.log_sums[row]);
    }
    return same;
}

// What `rank` gives of rows must be, to the last bit, what all logits give of each: but for the sum
// where it comes from integers.
void check_ranking(const Kernels& kernels, Checks& checks, const Vocabulary& vocabulary,
                   Workspace& w, const float* x, size_t ld, const std::vector<float>& logits,
                   Random& random) {
    const int size = vocabulary.size(), rows = (int)(logits.size() / size);
    const int count = random.between(1, std::min(size, 12));
    std::vector<float> values((size_t)rows * count),
        bias(vocabulary.bias(), vocabulary.bias() + size);
    bias.resize(size + MOST_PANEL);
    std::vector<int32_t> ids(values.size());
    std::vector<double> log_sums(rows);
    Ranked ranked{count, nullptr, values.data(), ids.data(), log_sums.data()};
    const bool bans = random.below(2);
    std::vector<float> expected(logits);
    for (int i = 0; bans && i < 5; i++) {
        const int id = random.below(size);
        bias[id] = -INFINITY;
        for (int row = 0; row < rows; row++) expected[(size_t)row * size + id] = -INFINITY;
    }
    if (bans) ranked.bias = bias.data();
    vocabulary.rank(w, x, rows, ranked);
    bool same = true;
    for (int row = 0; row < rows; row++) {
        const float* of_row = expected.data() + (size_t)row * size;
        std::vector<float> best(count);
        std::vector<int32_t> best_ids(count);
        kernels.top(of_row, size, count, best.data(), best_ids.data());
        const double sum = kernels.log_sum_exp(of_row, size);
        same = same &&
               (log_sums[row] == sum || (kernels.digits && std::fabs(log_sums[row] - sum) < 2e-5));
        sums_of_integers += log_sums[row] != sum;
        for (int i = 0; i < count; i++) {
            const size_t at = (size_t)row * count + i;
            same =
                same && values[at] == best[i] && (best[i] == -INFINITY || ids[at] == best_ids[i]);
        }
    }
    checks.hold(same_alone(vocabulary, w, x, ld, rows, ranked), "ranking of a row alone");
    checks.hold(
        same, "ranking of " + std::to_string(rows) + " rows, " + std::to_string(size) + " logits");
}

struct Computed {
    const std::vector<float>& logits;
    const std::vector<int32_t>& best;
};

// The best token where some rows, or all, may not choose the one that is the first row's best.
void check_barred(Checks& checks, const Vocabulary& vocabulary, Workspace& w, const float* x,
                  const Case& c, const Computed& computed, const std::string& name) {
    if ((int)c.suppressed.size() + 1 >= c.size) return;
    const int32_t token = computed.best[0];
    const Buffer<float> allowed = vocabulary.allowed_without(token);
    for (int each : {1, 2}) {
        std::vector<uint8_t> rows(c.rows);
        for (int row = 0; row < c.rows; row += each) rows[row] = 1;
        std::vector<int32_t> best(c.rows);
        vocabulary.best(w, x, c.rows, best.data(), {token, allowed.data(), rows.data()});
        for (int row = 0; row < c.rows; row++) {
            const float* of_row = computed.logits.data() + (size_t)row * c.size;
            std::vector<float> values(of_row, of_row + c.size);
            for (int id : c.suppressed) values[id] += SUPPRESSED;
            if (rows[row]) values[token] = -INFINITY;
            const int expected =
                (int)(std::max_element(values.begin(), values.end()) - values.begin());
            checks.hold(best[row] == expected, name + ": token " + std::to_string(best[row]) +
                                                   " beside a barred one, expected " +
                                                   std::to_string(expected));
        }
    }
}

// The token that `best` gives must be the first of the largest logits that are allowed.
void check_case(const Kernels& kernels, Checks& checks, const Case& c, const std::string& name) {
    Config config;
    config.target_vocab_size = c.size;
    config.d_model = c.d;
    config.suppress_tokens = c.suppressed;
    Store store;
    Team team(1);
    Tensors tensors(store, team);
    if (c.integers.empty())
        tensors.add("output_proj.weight",
                    {c.weight.data(), nullptr, (size_t)c.size, (size_t)c.d, (size_t)c.d, 1, false});
    else
        tensors.add("output_proj.weight", {c.integers.data(), c.scales.data(), (size_t)c.size,
                                           (size_t)c.d, (size_t)c.d, 1, true});
    tensors.add("output_proj.bias", {c.bias.data(), nullptr, 1, (size_t)c.size, 0, 1, false});
    const Vocabulary vocabulary(kernels, tensors, config);
    tensors.check();
    Workspace w(kernels, c.threads);
    Team::Span span(w.team, Phase::decoder, c.rows);
    const size_t ld = width(c.d);
    Buffer<float> x(c.rows * ld);
    for (int row = 0; row < c.rows; row++)
        std::copy_n(c.x.data() + (size_t)row * c.d, c.d, x.data() + row * ld);
    std::vector<float> logits((size_t)c.rows * c.size);
    std::vector<int32_t> best(c.rows);
    vocabulary.logits(w, x.data(), c.rows, logits.data(), c.size);
    vocabulary.best(w, x.data(), c.rows, best.data());
    check_barred(checks, vocabulary, w, x.data(), c, {logits, best}, name);
    Random random(c.size);
    check_ranking(kernels, checks, vocabulary, w, x.data(), ld, logits, random);
    for (int row = 0; row < c.rows; row++) {  // alone, whatever it is computed beside
        std::vector<float> alone(c.size);
        vocabulary.logits(w, x.data() + row * ld, 1, alone.data(), c.size);
        checks.hold(std::equal(alone.begin(), alone.end(), logits.begin() + (size_t)row * c.size),
                    name + ": a row alone");
    }
    for (int row = 0; row < c.rows; row++) {
        float* of_row = logits.data() + (size_t)row * c.size;
        std::vector<float> allowed(of_row, of_row + c.size);
        for (int id : c.suppressed) allowed[id] += SUPPRESSED;
        const int expected =
            (int)(std::max_element(allowed.begin(), allowed.end()) - allowed.begin());
        checks.hold(best[row] == expected, name + ": token " + std::to_string(best[row]) +
                                               " of logit " + std::to_string(allowed[best[row]]) +
                                               ", expected " + std::to_string(expected) + " of " +
                                               std::to_string(allowed[expected]));
    }
    std::vector<int32_t> columns;
    for (int i = 0; i < 7; i++) columns.push_back(i * 37 % c.size);
    std::vector<float> chosen((size_t)c.rows * columns.size());
    vocabulary.logits_of(w, x.data(), c.rows, columns.data(), (int)columns.size(), chosen.data(),
                         columns.size());
    bool same = true;
    for (int row = 0; row < c.rows; row++)
        for (size_t i = 0; i < columns.size(); i++)
            same = same &&
                   chosen[row * columns.size() + i] == logits[(size_t)row * c.size + columns[i]];
    checks.hold(same, name + ": logits of some columns");
}

Case drawn(Random& random, int size, int d, int rows) {
    Case c{size,
           d,
           rows,
           random.between(1, 3),
           random.normals((size_t)size * d, 0.05f),
           random.normals((size_t)rows * d),
           random.normals(size, 0.1f),
           {},
           {},
           {}};
    for (int i = 0; i < size / 50; i++) c.suppressed.push_back(random.below(size));
    const std::set<int> once(c.suppressed.begin(), c.suppressed.end());
    c.suppressed.assign(once.begin(), once.end());
    return c;
}

// Columns that differ from one of them by a few units of the last place, or not at all.
void nearly_equal(Case& c, Random& random) {
    std::fill(c.bias.begin(), c.bias.end(), 0.0f);
    for (int column = 1; column < c.size; column++)
        for (int i = 0; i < c.d; i++) {
            float v = c.weight[i];
            for (int steps = random.below(8) ? 0 : random.below(3); steps > 0; steps--)
                v = std::nextafter(v, random.below(2) ? 1e9f : -1e9f);
            c.weight[(size_t)column * c.d + i] = v;
        }
}

// Weights and rows that integers (of 16 bits) hold exactly, and logits that differ by less than how
// float32 rounds their sums, which the margin has to allow for: pairs of terms cancel, and what is
// left is a step or two of the smallest term.
void rounded_sums(Case& c, Random& random) {
    std::fill(c.bias.begin(), c.bias.end(), 0.0f);
    for (int row = 0; row < c.rows; row++) {
        float* x = c.x.data() + (size_t)row * c.d;
        for (int i = 0; i < c.d; i += 2)
            x[i] = x[i + 1] = (float)random.between(-32767, 32767) / 32768;
        x[0] = x[1] = 32767.0f / 32768;
        x[c.d - 1] = x[c.d - 2] = 1.0f / 32768;
    }
    std::vector<float> size(c.d / 2);
    for (float& v : size) v = (float)random.between(1, 127) / 128;
    size[0] = 127.0f / 128;
    for (int column = 0; column < c.size; column++) {
        float* w = c.weight.data() + (size_t)column * c.d;
        for (int i = 0; i < c.d; i += 2) {
            w[i] = random.below(2) ? size[i / 2] : -size[i / 2];
            w[i + 1] = -w[i];
        }
        w[c.d - 1] = (float)random.between(-20, 20) / 128;
    }
}

}  // namespace

void check_vocabulary(const Kernels& kernels, Checks& checks) {
    Random random(6);
    for (int i = 0; i < 24; i++) {
        Case c =
            drawn(random, random.between(2, 1500), random.between(1, 150), random.between(1, 5));
        check_case(kernels, checks, c, "drawn vocabulary");
        nearly_equal(c, random);
        check_case(kernels, checks, c, "columns nearly equal");  // more than there is room for, too
        c = drawn(random, random.between(2, 300), 2 * random.between(200, 250), 5);
        rounded_sums(c, random);
        check_case(kernels, checks, c, "sums that are rounded");
        c = drawn(random, 200, 64, 3);
        for (int column = 0; column < c.size; column++) {  // sizes of all orders, and of rows
            const float scale = std::pow(10.0f, (float)random.between(-18, 15));
            for (int j = 0; j < c.d; j++) c.weight[(size_t)column * c.d + j] *= scale;
        }
        for (float& v : c.x) v *= std::pow(10.0f, (float)(i - 12));
        check_case(kernels, checks, c, "norms of all sizes");
        c = drawn(random, random.between(2, 1200), random.between(1, 100), random.between(1, 70));
        c.integers.resize(c.weight.size());
        c.scales.assign(c.size, 0.01f);
        for (int8_t& v : c.integers) v = (int8_t)random.between(i % 2 ? -127 : 0, i % 2 ? 127 : 1);
        if (i % 2 == 0) std::fill(c.bias.begin(), c.bias.end(), 0.0f);  // ties
        check_case(kernels, checks, c, "int8 vocabulary");
    }
    for (int rows : {16, 17, 33, 48, 63, 70, 97}) {  // of all numbers of vectors
        Case c = drawn(random, random.between(500, 900), random.between(1, 60), rows);
        check_case(kernels, checks, c, "many rows");
    }
    checks.hold((kernels.digits != nullptr) == (sums_of_integers > 0),
                "which sums come from integers");
    sums_of_integers = 0;
    Case zeros = drawn(random, 2000, 32, 2);
    std::fill(zeros.weight.begin(), zeros.weight.end(), 0.0f);
    std::fill(zeros.bias.begin(), zeros.bias.end(), 0.0f);
    check_case(kernels, checks, zeros, "all logits equal");
}
