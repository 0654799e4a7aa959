// Attention of many queries of a source, as products of matrices. Included by an instruction set's
// file behind "rows.inl".

namespace tfn {
namespace {

// Keys (n, dim) as columns of a product, [n / panel][dim][panel], with anything behind them;
// values (n, dim) as its rows, [dim / panel][n][panel], with zeros behind them. `dim` is whole
// vectors.
void pack_source(const float* keys, const float* values, size_t ld, int n, int dim, float* to_keys,
                 float* to_values) {
    for (int first = 0; first < n; first += LANES) {
        const float* given[LANES];
        for (int i = 0; i < LANES; i++) given[i] = keys + (first + i < n ? first + i : n - 1) * ld;
        float* to = to_keys + (size_t)(first / PANEL) * dim * PANEL + first % PANEL;
        for (int at = 0; at < dim; at += LANES) {
            F rows[LANES];
#pragma GCC unroll 16
            for (int i = 0; i < LANES; i++) rows[i] = load(given[i] + at);
            transpose(rows, to + (size_t)at * PANEL, PANEL);
        }
    }
    for (int column = 0; column < dim; column += PANEL)
        for (int row = 0; row < n; row++, to_values += PANEL)
            for (int i = 0; i < PANEL; i += LANES)
                store(to_values + i, column + i < dim ? load(values + row * ld + column + i) : F{});
}

// Turns scores s of a row into exp(s - the largest), and gives the factor that makes weights of
// them; see `exponentials`.
INLINE float soften(float* scores, int n) {
    F most = splat(-INFINITY), sums = F{};
    for (int at = 0; at < n; at += LANES) {
        const F v = load(scores + at);
        most = larger(most, places() < n - at ? v : splat(-INFINITY));
    }
    const float highest_score = highest(most);
    for (int at = 0; at < n; at += LANES) {
        const F v = places() < n - at ? load(scores + at) : splat(-INFINITY);
        const F power = exponential(v - highest_score);
        store(scores + at, power);
        sums += power;
    }
    return 1.0f / sum(sums);
}

// Rows of a product, in parts where the set has those; `parts` is room for them.
INLINE Input rows_of(const float* x, size_t ld, int rows, int k, uint16_t* parts) {
    Input input;
    input.f32 = x;
    input.ld = ld;
#ifdef HAS_TILES
    input.ldp = parts_size(k);
    input.parts = parts;
    for (int row = 0; row < rows; row += SPLIT_ROWS, parts += input.ldp)
        split(x + row * ld, ld, rows - row < SPLIT_ROWS ? rows - row : SPLIT_ROWS, k, parts);
#else
    (void)rows, (void)k, (void)parts;
#endif
    return input;
}

// Scores of all queries, then their weights, then their contexts, each a whole product. A sum runs
// over the keys in one chain, so that a query's context does not depend on the others.
void attend_source(const AttendSource& a) {
    const int panels = (a.n + PANEL - 1) / PANEL, of_values = (a.dim + PANEL - 1) / PANEL;
    Packed keys, values;
    keys.k = a.dim;
    keys.floats = a.keys;
    values.k = a.n;
    values.floats = a.values;
    const Input queries = rows_of(a.queries, a.ld, a.rows, a.dim, a.parts);
    product(keys, queries, a.rows, 0, panels, [&](const Sums& sums) {
        for (int r = 0; r < sums.count; r++)
            for (int i = 0; i < sums.columns; i += LANES)
                store(a.scores + (sums.row + r) * a.lds + sums.column + i,
                      load(sums.values + r * sums.ld + i) * a.scale);
    });
    for (int r = 0; r < a.rows; r++) a.factors[r] = soften(a.scores + r * a.lds, a.n);
    const Input weights = rows_of(a.scores, a.lds, a.rows, a.n, a.parts);
    product(values, weights, a.rows, 0, of_values, [&](const Sums& sums) {
        for (int r = 0; r < sums.count; r++)
            for (int i = 0; i < sums.columns && sums.column + i < a.dim; i += LANES)
                store(a.context + (sums.row + r) * a.ldc + sums.column + i,
                      load(sums.values + r * sums.ld + i) * a.factors[sums.row + r]);
    });
}

bool runs_here();

}  // namespace

#define DEFINE_KERNELS(NAME)                            \
    extern const Kernels NAME##_kernels;                \
    const Kernels NAME##_kernels = {#NAME,              \
                                    LANES,              \
                                    PANEL,              \
                                    GROUP,              \
                                    DEPTH,              \
                                    (int)sizeof(Value), \
                                    runs_here,          \
                                    linear,             \
                                    screen,             \
                                    rank,               \
                                    turn,               \
                                    split,              \
                                    dots,               \
                                    pair_groups,        \
                                    quantize,           \
                                    digits,             \
                                    quantization_error, \
                                    norm,               \
                                    attend,             \
                                    pack_source,        \
                                    attend_source,      \
                                    argmax,             \
                                    top,                \
                                    log_sum_exp};

}  // namespace tfn
