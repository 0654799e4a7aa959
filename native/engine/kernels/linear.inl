// Products of rows with packed weights. Included by an instruction set's file behind "vectors.h";
// it defines MOST_ROWS, reaches, and the integer products:
//   Value, GROUP       integers of a row, and how many of them one product takes together
//   DEPTH, OFFSET      K is a multiple of DEPTH; OFFSET is added to integers
//   SYMMETRIC, STEPS   rows' zeros are always 0; how many integers there are, or half of them
//   SUMS_OF_PAIRS      two products are added in 16 bits, where they have to fit
//   SLOW_SUMS          sums follow one another so slowly that few rows need several panels at once
//   Weights, load_weights, multiply_add, store_values

namespace tfn {
namespace {

constexpr size_t AHEAD = 8192;  // bytes of weights that are fetched ahead
constexpr int ROWS_AT_ONCE = 96;  // of the input, so that they stay in the second cache
constexpr int WIDE = 8 / VECTORS;  // panels of a single row: eight sums hide one another's latency

// Products of `count` rows and some neighbouring columns, a block of them.
struct Sums {
    int row, count, column, columns;
    const float* values;  // (count, columns)
};

// Bytes of weights that are fetched from memory while others are multiplied: at every step of k, those
// at `first` and the next ones of a panel, `step` further on.
struct Fetch {
    const char* first;
    size_t step;
};
template <int BYTES>  // that a panel has for a step of k
INLINE void fetch(const Fetch& f, size_t offset) {
    for (int i = 0; i < BYTES; i += 64) __builtin_prefetch(f.first + offset + i, 0, 2);
}

// ROWS rows times PANELS panels. Every sum runs over k in one chain, whatever ROWS and PANELS are.
template <int ROWS, int PANELS>
__attribute__((noinline)) void block_f32(const Packed& w, const Input& input, int row, int panel,
                                         Fetch next, float* out) {
    F sums[PANELS][ROWS][VECTORS] = {};
    const float* x = input.f32 + row * input.ld;
    const float* at = w.f32 + (size_t)panel * w.k * PANEL;
    const size_t apart = (size_t)w.k * PANEL, ld = input.ld;
    for (int k = 0; k < w.k; k++, at += PANEL, next.first += next.step) {
#pragma GCC unroll 8
        for (int p = 0; p < PANELS; p++) {
            F columns[VECTORS];
#pragma GCC unroll 8
            for (int v = 0; v < VECTORS; v++) columns[v] = load(at + p * apart + v * LANES);
            fetch<PANEL * 4>(next, p * apart * 4);
#pragma GCC unroll 16
            for (int r = 0; r < ROWS; r++) {
                F value = splat(x[r * ld + k]);
#pragma GCC unroll 8
                for (int v = 0; v < VECTORS; v++) sums[p][r][v] += value * columns[v];
            }
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 8
        for (int p = 0; p < PANELS; p++)
#pragma GCC unroll 8
            for (int v = 0; v < VECTORS; v++)
                store(out + (r * PANELS + p) * PANEL + v * LANES, sums[p][r][v]);
}

// What turns sums of integers of some columns into values of the product.
struct Columns {
    F scales;
    I sums;
    INLINE Columns(const Packed& w, int column)
        : scales(load(w.scales + column)), sums(*(const I*)(w.sums + column)) {}
    INLINE F dequantized(Quantization how, I found) const {
        if (!SYMMETRIC) found -= sums * how.zero;
        return to_float(found) * (scales * how.scale);
    }
};

// The same with integers, whose sums are exact.
template <int ROWS, int PANELS>
__attribute__((noinline)) void block_int8(const Packed& w, const Input& input, int row, int panel,
                                          Fetch next, float* out) {
    I sums[PANELS][ROWS][VECTORS] = {};
    const Value* x = (const Value*)input.quantized + row * input.ldq;
    const int8_t* at = w.int8 + (size_t)panel * w.k * PANEL;
    const size_t apart = (size_t)w.k * PANEL, ld = input.ldq;
    for (int k = 0; k < w.k; k += GROUP, at += PANEL * GROUP, next.first += next.step) {
#pragma GCC unroll 8
        for (int p = 0; p < PANELS; p++) {
            Weights columns[VECTORS];
#pragma GCC unroll 8
            for (int v = 0; v < VECTORS; v++)
                columns[v] = load_weights(at + p * apart + v * LANES * GROUP);
            fetch<PANEL * GROUP>(next, p * apart);
#pragma GCC unroll 16
            for (int r = 0; r < ROWS; r++) {
                int32_t values;
                memcpy(&values, x + r * ld + k, 4);
#pragma GCC unroll 8
                for (int v = 0; v < VECTORS; v++)
                    sums[p][r][v] = multiply_add(sums[p][r][v], columns[v], values);
            }
        }
    }
    const Quantization* how = input.rows + row;
#pragma GCC unroll 8
    for (int p = 0; p < PANELS; p++)
#pragma GCC unroll 8
        for (int v = 0; v < VECTORS; v++) {
            const int column = p * PANEL + v * LANES;
            const Columns of(w, panel * PANEL + column);
#pragma GCC unroll 16
            for (int r = 0; r < ROWS; r++)
                store(out + r * PANELS * PANEL + column, of.dequantized(how[r], sums[p][r][v]));
        }
}

// Few rows take several panels at once, or their few sums would wait for one another.
constexpr int panels_at_once(int rows) { return rows == 1 ? WIDE : rows <= 3 && VECTORS <= 2 ? 2 : 1; }

using Block = void (*)(const Packed&, const Input&, int row, int panel, Fetch next, float* out);
struct Blocks {  // of so many rows: of several panels at once, and of the last ones
    int at_once;
    Block several, one;
};
template <int ROWS>
INLINE Blocks blocks_of(bool f32) {
    constexpr int MANY = panels_at_once(ROWS);
    if (f32) return {MANY, block_f32<ROWS, MANY>, block_f32<ROWS, 1>};
    constexpr int INTEGERS = SLOW_SUMS ? MANY : 1;
    return {INTEGERS, block_int8<ROWS, INTEGERS>, block_int8<ROWS, 1>};
}
Blocks blocks_of(int rows, bool f32) {
#define ROWS_CASE(N) \
    case N: return blocks_of<N <= MOST_ROWS ? N : 1>(f32);
    switch (rows) {
        ROWS_CASE(2) ROWS_CASE(3) ROWS_CASE(4) ROWS_CASE(5) ROWS_CASE(6) ROWS_CASE(7) ROWS_CASE(8)
        ROWS_CASE(9) ROWS_CASE(10) ROWS_CASE(11) ROWS_CASE(12)
    }
#undef ROWS_CASE
    return blocks_of<1>(f32);
}

// Gives `out` all sums, block by block; a row's columns rise.
template <class Out>
INLINE void product(const Packed& w, const Input& x, int rows, int first, int last, Out&& out) {
#ifdef HAS_TILES
    if (w.int8 && rows >= TILED_ROWS) return tiled_product(w, x, rows, first, last, out);
#endif
    constexpr int LARGEST = MOST_ROWS > 2 * WIDE ? MOST_ROWS : 2 * WIDE;
    alignas(64) float values[LARGEST * PANEL];
    const int at_step = w.f32 ? PANEL * 4 : PANEL * GROUP;  // bytes of a panel
    const size_t of_panel = (size_t)w.k * PANEL * (w.f32 ? 4 : 1);
    const char* weights = w.f32 ? (const char*)w.f32 : (const char*)w.int8;
    for (int from = 0; from < rows; from += ROWS_AT_ONCE) {
        const int to = from + ROWS_AT_ONCE < rows ? from + ROWS_AT_ONCE : rows;
        const int passes = (to - from + MOST_ROWS - 1) / MOST_ROWS, least = (to - from) / passes;
        const Blocks of_counts[] = {blocks_of(least, w.f32), blocks_of(least + 1, w.f32)};
        // One panel after another for many rows: it is read once from memory, then from the cache,
        // and all passes over it together fetch the next one.
        const int step = passes > 1 ? 1 : last - first;
        for (int begin = first; begin < last; begin += step)
            for (int row = from, pass = 0; row < to; pass++) {
                const int count = (to - row + passes - pass - 1) / (passes - pass);
                const Blocks& blocks = of_counts[count - least];
                for (int panel = begin; panel < begin + step;) {
                    const bool several = panel + blocks.at_once <= begin + step;
                    const int panels = several ? blocks.at_once : 1;
                    Fetch next{weights + panel * of_panel + AHEAD, (size_t)at_step};
                    if (passes > 1)
                        next = {weights + (panel + 1) * of_panel + pass * of_panel / passes,
                                (size_t)(at_step / passes)};
                    (several ? blocks.several : blocks.one)(w, x, row, panel, next, values);
                    out(Sums{row, count, panel * PANEL, panels * PANEL, values});
                    panel += panels;
                }
                row += count;
            }
    }
}

// Of each row, a vector of sums and bias to what f makes of it and of what was there.
template <class Finish>
INLINE void finish_rows(const Epilogue& out, const Sums& sums, int i, Finish&& f) {
    const F bias = load(out.bias + sums.column + i);
    const int count = out.columns - sums.column - i;
    float* y = out.y + sums.row * out.ld + sums.column + i;
    const float* values = sums.values + i;
    for (int r = 0; r < sums.count; r++, y += out.ld, values += sums.columns) {
        const F v = load(values) + bias;
        if (count >= LANES) {
            store(y, f(v, y));
            continue;
        }
        float part[LANES] = {};  // not all of these columns may be written
        memcpy(part, y, sizeof(float) * count);
        store(part, f(v, part));
        memcpy(y, part, sizeof(float) * count);
    }
}

void finish(const Epilogue& out, const Sums& sums) {
#define FINISH(VALUE) \
    finish_rows(out, sums, i, [&](F v, const float* y) __attribute__((always_inline)) { \
        (void)y; \
        return VALUE; \
    })
    for (int i = 0; i < sums.columns && sums.column + i < out.columns; i += LANES)
        switch (out.then) {
            case Then::add: FINISH(load(y) * out.scale + v); break;
            case Then::multiply: FINISH(load(y) * v); break;
            case Then::store:
                if (out.activation == Activation::none) FINISH(v);
                else if (out.activation == Activation::relu) FINISH(activate(Activation::relu, v));
                else FINISH(activate(out.activation, v));
        }
#undef FINISH
}

void linear(const Packed& w, const Input& x, int rows, int first, int last, const Epilogue& out) {
    product(w, x, rows, first, last, [&](const Sums& sums) { finish(out, sums); });
}

// ROWS rows of x with COLUMNS rows of w.
template <int ROWS, int COLUMNS>
INLINE void dots_block(const Dots& d, int row, int column) {
    constexpr int COUNT = ROWS * COLUMNS;
    const float *x = d.x + row * d.ldx, *w = d.w + column * d.ldw;
    F sums[COUNT] = {};
    int k = 0;
    for (; k + LANES <= d.k; k += LANES) {
        F values[ROWS];
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; r++) values[r] = load(x + r * d.ldx + k);
#pragma GCC unroll 8
        for (int c = 0; c < COLUMNS; c++) {
            F weights = load(w + c * d.ldw + k);
            // Of the next columns: rows of weights are too short for the processor to fetch ahead.
            if (k % 16 == 0) __builtin_prefetch(w + (c + COLUMNS) * d.ldw + k, 0, 3);
#pragma GCC unroll 8
            for (int r = 0; r < ROWS; r++) sums[r * COLUMNS + c] += values[r] * weights;
        }
    }
    float totals[COUNT];
    for (int i = 0; i + BLOCK <= COUNT; i += BLOCK) lane_sums(sums + i, totals + i);
    for (int i = COUNT / BLOCK * BLOCK; i < COUNT; i++) totals[i] = sum(sums[i]);
    for (int r = 0; r < ROWS; r++)
        for (int c = 0; c < COLUMNS; c++) {
            float total = totals[r * COLUMNS + c];
            for (int i = k; i < d.k; i++) total += x[r * d.ldx + i] * w[c * d.ldw + i];
            d.y[(row + r) * d.ldy + column + c] = d.bias ? total + d.bias[column + c] : total;
        }
}

// As many sums as registers hold beside the values.
constexpr int DOT_ROWS = MOST_ROWS * VECTORS >= 24 ? 4 : 3;
constexpr int DOT_COLUMNS = MOST_ROWS * VECTORS >= 24 ? 6 : 4;

template <int COLUMNS>
INLINE void dots_of(const Dots& d, int column) {
    int row = 0;
    for (; row + DOT_ROWS <= d.rows; row += DOT_ROWS) dots_block<DOT_ROWS, COLUMNS>(d, row, column);
    for (; row + 2 <= d.rows; row += 2) dots_block<2, COLUMNS>(d, row, column);
    for (; row < d.rows; row++) dots_block<1, COLUMNS>(d, row, column);
}

void dots(const Dots& d) {
    int column = 0;
    for (; column + DOT_COLUMNS <= d.columns; column += DOT_COLUMNS) dots_of<DOT_COLUMNS>(d, column);
    for (; column < d.columns; column++) dots_of<1>(d, column);
}

// Room for another candidate: those that lost since they were found go.
void prune(Screen& s) {
    int kept = 0;
    for (int i = 0; i < s.count; i++) {
        if (!(s.upper[i] >= s.best)) continue;
        s.ids[kept] = s.ids[i];
        s.upper[kept++] = s.upper[i];
    }
    s.full = s.full || kept == s.room;
    s.count = s.full ? 0 : kept;
}

// A column stays a candidate while its upper bound reaches the best lower bound.
void take_candidates(Screen& s, int column, bool exact, F upper, F lower) {
    float uppers[LANES], lowers[LANES];
    store(uppers, upper);
    store(lowers, lower);
    for (int i = 0; i < LANES; i++) {
        if (exact ? !(uppers[i] > s.best) : !(uppers[i] >= s.best)) continue;
        if (exact) s.count = 0;
        if (s.count == s.room) prune(s);
        s.ids[s.count] = column + i;
        s.upper[s.count++] = uppers[i];
        if (lowers[i] > s.best) s.best = lowers[i];
    }
}

// See "vocabulary.h" for why the bounds hold.
void screen(const Packed& w, const Input& x, int rows, int first, int last,
            const ScreenColumns& columns, Screen* screens) {
    product(w, x, rows, first, last, [&](const Sums& sums) {
        for (int r = 0; r < sums.count; r++) {
            Screen& s = screens[sums.row + r];
            for (int i = 0; i < sums.columns; i += LANES) {
                const int column = sums.column + i;
                const F v = load(sums.values + r * sums.columns + i) + load(columns.bias + column);
                F bound = F{};
                if (!columns.exact)
                    bound = s.length * load(columns.errors + column) +
                            s.error * load(columns.lengths + column) +
                            (absolute(v) * 1e-6f + 1e-25f);
                if (reaches(v + bound, s.best))
                    take_candidates(s, column, columns.exact, v + bound, v - bound);
            }
        }
    });
}

}  // namespace
}  // namespace tfn
