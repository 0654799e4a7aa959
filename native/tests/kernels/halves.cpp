// Weights in 16 bits: the bits of every result are those of the same weights in float32.
#include <algorithm>
#include <cstring>

#include "check.h"

using namespace tfn;

namespace {

constexpr Half TYPES[] = {Half::bfloat16, Half::float16};

const char* name_of(Half type) { return type == Half::bfloat16 ? "bfloat16" : "float16"; }

// Any finite value that a type holds, subnormal ones and both zeros included.
float draw(Random& random, Half type) {
    if (random.below(8) == 0) return random.below(2) ? -0.0f : 0.0f;
    if (type == Half::float16) return widened(type, (uint16_t)(random.below(1 << 16) & 0xfbff));
    const uint32_t exponent = random.below(20) ? random.between(110, 135) : random.below(120);
    return float_of((uint32_t)random.below(2) << 31 | exponent << 23 |
                    (uint32_t)random.below(128) << 16);
}

void pack(const Kernels& kernels, Weights& w) {
    w.packed.reserve((size_t)w.panels * kernels.panel * w.k);
    for (int column = 0; column < w.n; column++)
        for (int i = 0; i < w.k; i++)
            w.packed[packed_at(kernels, Half::none, w.k, column, i)] =
                w.values[(size_t)column * w.k + i];
    w.form = {w.k, w.packed.data(), nullptr, nullptr, nullptr};
}

bool same(const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() && !memcmp(a.data(), b.data(), a.size() * sizeof(float));
}

void check_product(const Kernels& kernels, Checks& checks, Random& random, Half type, int m, int n,
                   int k, bool parts) {
    const Weights wide = make_wide(kernels, random, n, k, type);
    const Weights halves = as_halves(kernels, wide, type);
    Rows rows = make_rows(kernels, random.normals((size_t)m * k), m, k, false);
    if (parts) split_rows(kernels, rows);
    const size_t ld = n + random.below(5);
    Epilogue end{nullptr, ld, wide.bias.data(), n};
    end.then = (Then)random.below(3);
    const std::vector<float> before = random.normals(m * ld);
    std::vector<float> found[2] = {before, before};
    for (int i = 0; i < 2; i++) {
        end.y = found[i].data();
        const int cut = i ? random.below(wide.panels + 1) : 0;
        kernels.linear((i ? halves : wide).form, rows.input, m, 0, cut, end);
        kernels.linear((i ? halves : wide).form, rows.input, m, cut, wide.panels, end);
    }
    checks.hold(same(found[0], found[1]), std::string(name_of(type)) + " " + std::to_string(m) +
                                              " x " + std::to_string(n) + " x " +
                                              std::to_string(k));
}

void check_rows(const Kernels& kernels, Checks& checks, Random& random, Half type) {
    const int m = random.between(1, 10), n = random.between(1, 20), k = random.between(1, 100);
    const auto x = random.normals((size_t)m * k), bias = random.normals(n);
    std::vector<float> w((size_t)n * k), y((size_t)m * n), expected(y);
    std::vector<uint16_t> halves(w.size());
    for (size_t i = 0; i < w.size(); i++)
        checks.hold(narrowed(type, w[i] = draw(random, type), &halves[i]), "a value that fits");
    Dots d{x.data(), (size_t)k, m,           w.data(),        (size_t)k,
           n,        k,         bias.data(), expected.data(), (size_t)n};
    kernels.dots(d);
    d.w = {halves.data(), type};
    d.y = y.data();
    kernels.dots(d);
    checks.hold(same(y, expected), std::string("rows of ") + name_of(type));
}

}  // namespace

Weights make_wide(const Kernels& kernels, Random& random, int n, int k, Half type) {
    Weights w = make_weights(kernels, random, n, k, false);
    for (float& value : w.values) value = draw(random, type);
    pack(kernels, w);
    return w;
}

Weights as_halves(const Kernels& kernels, const Weights& wide, Half type) {
    Weights w{wide.n, wide.k, wide.panels, wide.values, {}, {}, {}, {}, {}, {}, {}, {}};
    w.halves.reserve((size_t)w.panels * kernels.panel * w.k);
    w.bias.reserve((size_t)w.panels * kernels.panel);
    std::copy_n(wide.bias.data(), w.n, w.bias.data());
    for (int column = 0; column < w.n; column++)
        for (int i = 0; i < w.k; i++)
            narrowed(type, w.values[(size_t)column * w.k + i],
                     &w.halves[packed_at(kernels, type, w.k, column, i)]);
    w.form = {w.k, {w.halves.data(), type}, nullptr, nullptr, nullptr};
    return w;
}

void check_halves(const Kernels& kernels, Checks& checks) {
    Random random(5);
    for (Half type : TYPES) {
        for (bool parts : {false, true}) {
            if (parts && !kernels.split) continue;
            for (int m = 1; m <= 40; m++)
                check_product(kernels, checks, random, type, m, random.between(1, 300),
                              random.between(1, 100), parts);
            for (int m : {97, 130, 200})
                check_product(kernels, checks, random, type, m, 70, random.between(1, 200), parts);
            check_product(kernels, checks, random, type, 1, 700, 2048, parts);
        }
        for (int i = 0; i < 40; i++) check_rows(kernels, checks, random, type);
    }
}

void check_conversions(Checks& checks) {
    for (Half type : TYPES) {
        bool back = true;
        for (uint32_t half = 0; half < 1 << 16; half++) {
            uint16_t again = 0;
            const float wide = widened(type, (uint16_t)half);
            // Infinities and what is no number stay float32 where the formula does not have them.
            if (type == Half::float16 && (half & 0x7c00) == 0x7c00) continue;
            back = back && narrowed(type, wide, &again) && again == half;
            const int exponent = half >> 10 & 31, digits = half & 1023;
            if (type == Half::bfloat16) {
                back = back && bits_of(wide) == half << 16;
                continue;
            }
            const double size =
                exponent ? std::ldexp(1024 + digits, exponent - 25) : std::ldexp(digits, -24);
            back = back && wide == (half >> 15 ? -size : size) && std::signbit(wide) == half >> 15;
            // What lies between two neighbours is neither.
            if (!size) continue;
            back = back && !narrowed(type, float_of(bits_of(wide) + 1), &again);
            back = back && !narrowed(type, float_of(bits_of(wide) - 1), &again);
        }
        checks.hold(back, name_of(type));
    }
    uint16_t half;
    for (float value :
         {65520.0f, 1e30f, 0x1p-25f, -0x1.8p-25f, 0x1.8p-24f, 1e-40f, INFINITY, -INFINITY, NAN})
        checks.hold(!narrowed(Half::float16, value, &half),
                    "not in float16: " + std::to_string(value));
}
