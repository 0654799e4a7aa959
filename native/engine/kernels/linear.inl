// Products of rows with packed weights. Included by an instruction set's file behind "vectors.h";
// it defines MOST_ROWS, reaches, and the integer products:
//   Value, GROUP       integers of a row, and how many of them one product takes together
//   DEPTH, OFFSET      K is a multiple of DEPTH; OFFSET is added to integers
//   SYMMETRIC, STEPS   rows' zeros are always 0; how many integers there are, or half of them
//   SUMS_OF_PAIRS      two products are added in 16 bits, where they have to fit
//   SLOW_SUMS          sums follow one another so slowly that few rows need several panels at once
//   Weights, load_weights, multiply_add, store_values
// with HAS_PAIRED_GROUPS multiply_add_both: of two groups whose sums 16 bits hold;
// and, with HAS_FLOAT16, load_float16: a vector of float16 by its own instruction.

namespace tfn {
namespace {

constexpr size_t AHEAD = 8192;     // bytes of weights that are fetched ahead
constexpr int ROWS_AT_ONCE = 96;   // of the input, so that they stay in the second cache
constexpr int WIDE = 8 / VECTORS;  // panels of a single row: eight sums hide one another's latency

// Products of `count` rows and some neighbouring columns, a block of them.
struct Sums {
    int row, count, column, columns;
    const float* values;  // (count, columns), `ld` apart
    int ld;
};

// Bytes of weights that are fetched from memory while others are multiplied: at every step of k,
// those at `first` and the next ones of a panel, `step` further on; from step `turn` on those at
// `later`.
struct Fetch {
    const char* first;
    size_t step;
    int turn = -1;
    const char* later = nullptr;
};
template <int BYTES>  // that a panel has for a step of k
INLINE void fetch(const Fetch& f, size_t offset) {
    for (int i = 0; i < BYTES; i += 64) __builtin_prefetch(f.first + offset + i, 0, 2);
}

// Floats as they are stored: vectors of neighbours, and of a step of k in a panel.
struct Float32 {
    typedef float Stored;
    static constexpr Half TYPE = Half::none;
    static INLINE F load(const float* p) { return tfn::load(p); }
    static INLINE float one(float stored) { return stored; }
    static INLINE void load_panel(const float* p, F* columns) {
#pragma GCC unroll 8
        for (int v = 0; v < VECTORS; v++) columns[v] = load(p + v * LANES);
    }
};

struct Bfloat16 {
    typedef uint16_t Stored;
    static constexpr Half TYPE = Half::bfloat16;
    static INLINE F load(const uint16_t* p) { return (F)(to_words(p) << 16); }
    static INLINE float one(uint16_t stored) { return widened(TYPE, stored); }
    static INLINE void load_panel(const uint16_t* p, F* columns) {
#pragma GCC unroll 8
        for (int v = 0; v + 1 < VECTORS; v += 2) {
            const I pairs = *(const I*)(p + v * LANES);
            columns[v] = (F)(pairs << 16);
            columns[v + 1] = (F)(pairs & (int32_t)0xffff0000);
        }
        if (VECTORS % 2) columns[VECTORS - 1] = load(p + (VECTORS - 1) * LANES);
    }
};

#ifndef HAS_FLOAT16
INLINE F load_float16(const uint16_t* p) {  // as `widened`
    const I words = to_words(p), rest = (words & 0x7fff) << 13;
    const F small = (F)(rest + (113 << 23)) - 0x1p-14f;
    const I size = (words & 0x7c00) == 0 ? (I)small : rest + (112 << 23);
    return (F)(size | (words & 0x8000) << 16);
}
#endif

struct Float16 {
    typedef uint16_t Stored;
    static constexpr Half TYPE = Half::float16;
    static INLINE F load(const uint16_t* p) { return load_float16(p); }
    static INLINE float one(uint16_t stored) { return widened(TYPE, stored); }
    static INLINE void load_panel(const uint16_t* p, F* columns) {
#pragma GCC unroll 8
        for (int v = 0; v < VECTORS; v++) columns[v] = load(p + v * LANES);
    }
};

// ROWS rows times PANELS panels. Every sum runs over k in one chain, whatever ROWS and PANELS are.
template <int ROWS, int PANELS, class As>
__attribute__((noinline)) void block_float(const Packed& w, const Input& input, int row, int panel,
                                           Fetch next, float* out) {
    F sums[PANELS][ROWS][VECTORS] = {};
    const float* x = input.f32 + row * input.ld;
    auto at = w.floats.as<typename As::Stored>() + (size_t)panel * w.k * PANEL;
    const size_t apart = (size_t)w.k * PANEL, ld = input.ld;
    for (int k = 0; k < w.k; k++, at += PANEL, next.first += next.step) {
        if (k == next.turn) next.first = next.later;
#pragma GCC unroll 8
        for (int p = 0; p < PANELS; p++) {
            F columns[VECTORS];
            As::load_panel(at + p * apart, columns);
            fetch<PANEL * sizeof *at>(next, p * apart * sizeof *at);
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
        // Sums of a damaged file may be any: without a sign they wrap.
        if (!SYMMETRIC) found = (I)((U)found - (U)sums * (uint32_t)how.zero);
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
        if (k == next.turn) next.first = next.later;
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

#ifdef HAS_PAIRED_GROUPS
#include "pairs.inl"
#else
constexpr void (*pair_groups)(const int8_t* panel, int k, int largest, uint16_t* order) = nullptr;
#endif

// Few rows take several panels at once, or their few sums would wait for one another.
constexpr int panels_at_once(int rows) {
    return rows == 1 ? WIDE : rows <= 3 && VECTORS <= 2 ? 2 : 1;
}

using Block = void (*)(const Packed&, const Input&, int row, int panel, Fetch next, float* out);
struct Blocks {  // of so many rows: of several panels at once, and of the last ones
    int at_once;
    Block several, one;
};
template <int ROWS>
INLINE Blocks blocks_of(const Packed& w) {
    constexpr int MANY = panels_at_once(ROWS), INTEGERS = SLOW_SUMS ? MANY : 1;
#ifdef HAS_PAIRED_GROUPS
    if constexpr (ROWS >= FEWEST_PAIRED && ROWS <= MOST_PAIRED_ROWS)
        if (w.int8 && w.order) return {1, block_paired<ROWS>, block_paired<ROWS>};
#endif
    if (w.int8) return {INTEGERS, block_int8<ROWS, INTEGERS>, block_int8<ROWS, 1>};
    switch (w.floats.type()) {
        case Half::none: break;
        case Half::bfloat16:
            return {MANY, block_float<ROWS, MANY, Bfloat16>, block_float<ROWS, 1, Bfloat16>};
        case Half::float16:
            return {MANY, block_float<ROWS, MANY, Float16>, block_float<ROWS, 1, Float16>};
    }
    return {MANY, block_float<ROWS, MANY, Float32>, block_float<ROWS, 1, Float32>};
}
Blocks blocks_of(int rows, const Packed& w) {
#define ROWS_CASE(N) \
    case N: return blocks_of<N <= MOST_ROWS ? N : 1>(w);
    switch (rows) {
        // clang-format off
        ROWS_CASE(2) ROWS_CASE(3) ROWS_CASE(4) ROWS_CASE(5) ROWS_CASE(6) ROWS_CASE(7) ROWS_CASE(8)
        ROWS_CASE(9) ROWS_CASE(10) ROWS_CASE(11) ROWS_CASE(12)
        // clang-format on
    }
#undef ROWS_CASE
    return blocks_of<1>(w);
}

// LANES rows of LANES values turned into columns, `apart` from one another.
INLINE void transpose(const F* rows, float* to, size_t apart) {
    constexpr auto all = std::make_integer_sequence<int, LANES>();
    F turned[LANES];  // of each four rows, columns 0, 4 and so on, then 1, 5 and so on
    for (int i = 0; i < LANES; i += 4) {
        const F low = merged<1, 0>(rows[i], rows[i + 1], all),
                high = merged<1, 2>(rows[i], rows[i + 1], all);
        const F next_low = merged<1, 0>(rows[i + 2], rows[i + 3], all);
        const F next_high = merged<1, 2>(rows[i + 2], rows[i + 3], all);
        turned[i] = merged<2, 0>(low, next_low, all);
        turned[i + 1] = merged<2, 2>(low, next_low, all);
        turned[i + 2] = merged<2, 0>(high, next_high, all);
        turned[i + 3] = merged<2, 2>(high, next_high, all);
    }
    for (int i = 0; i < 4; i++) {
        if constexpr (LANES == 4) {
            store(to + i * apart, turned[i]);
        } else if constexpr (LANES == 8) {
            store(to + i * apart, fours<0>(turned[i], turned[i + 4], all));
            store(to + (i + 4) * apart, fours<1>(turned[i], turned[i + 4], all));
        } else {
            const F even = fours<0>(turned[i], turned[i + 4], all);
            const F odd = fours<1>(turned[i], turned[i + 4], all);
            const F next_even = fours<0>(turned[i + 8], turned[i + 12], all);
            const F next_odd = fours<1>(turned[i + 8], turned[i + 12], all);
            store(to + i * apart, fours<0>(even, next_even, all));
            store(to + (i + 4) * apart, fours<0>(odd, next_odd, all));
            store(to + (i + 8) * apart, fours<1>(even, next_even, all));
            store(to + (i + 12) * apart, fours<1>(odd, next_odd, all));
        }
    }
}

// A product with a table: rows lie in the lanes of vectors, and meet one value of a column at a
// time, so that a sum runs over k in one chain as those of packed weights do.
constexpr bool MANY_SUMS = MOST_ROWS * VECTORS >= 24;  // fit into the registers
constexpr int MOST_TURNED = MANY_SUMS ? 4 : 2;         // vectors of rows at a time
// Columns, whose sums are turned back.
constexpr int GROUPED = PANEL < 64 ? 64 / PANEL * PANEL : PANEL;
constexpr int columns_at_once(int vectors) {
    return MANY_SUMS && vectors < 4 ? 8 : vectors == 1 ? 8 : 6;
}

template <int TURNED, int COLUMNS, class As>
INLINE void table_block(const float* x, int k, const typename As::Stored* const* columns,
                        size_t ahead, float* out) {
    constexpr bool AS_IS = As::TYPE == Half::none;
    constexpr int PART = 256;  // values of a column that are widened at a time
    F sums[COLUMNS][TURNED] = {};
    const size_t apart = (size_t)k * LANES;
    alignas(64) float widened[AS_IS ? 1 : COLUMNS][AS_IS ? 1 : PART];
    for (int from = 0; from < k; from += PART) {
        const int count = k - from < PART ? k - from : PART;
        const float* values[COLUMNS];
        for (int c = 0; c < COLUMNS; c++) {
            if constexpr (AS_IS) {
                values[c] = columns[c] + from;
            } else {
                int i = 0;
                for (; i + LANES <= count; i += LANES)
                    store(widened[c] + i, As::load(columns[c] + from + i));
                for (; i < count; i++) widened[c][i] = As::one(columns[c][from + i]);
                values[c] = widened[c];
            }
        }
        for (int i = 0; i < count; i++, x += LANES) {
            if (i % 16 == 0)
#pragma GCC unroll 8
                for (int c = 0; c < COLUMNS; c++)
                    __builtin_prefetch(columns[c] + ahead + from + i, 0, 3);
            F rows[TURNED];
#pragma GCC unroll 8
            for (int t = 0; t < TURNED; t++) rows[t] = load(x + t * apart);
#pragma GCC unroll 8
            for (int c = 0; c < COLUMNS; c++) {
                const F value = splat(values[c][i]);
#pragma GCC unroll 8
                for (int t = 0; t < TURNED; t++) sums[c][t] += rows[t] * value;
            }
        }
    }
#pragma GCC unroll 8
    for (int c = 0; c < COLUMNS; c++)
#pragma GCC unroll 8
        for (int t = 0; t < TURNED; t++) store(out + (c * TURNED + t) * LANES, sums[c][t]);
}

// GROUPED columns at most, of TURNED vectors of rows; `values` (rows, GROUPED).
template <int TURNED, class As>
__attribute__((noinline)) void table_group(const Packed& w, const float* x, int begin, int end,
                                           float* values) {
    constexpr int AT_ONCE = columns_at_once(TURNED);
    constexpr int PADDED = (GROUPED + AT_ONCE + LANES - 1) / LANES * LANES;
    alignas(64) float sums[PADDED * TURNED * LANES];
    const Table& t = w.table;
    const auto rows = t.rows.template as<typename As::Stored>();
    for (int column = begin; column < end; column += AT_ONCE) {
        const typename As::Stored* columns[AT_ONCE];
        for (int c = 0; c < AT_ONCE; c++) {
            const int place = column + c < t.count ? column + c : t.count - 1;
            columns[c] = rows + (t.columns ? t.columns[place] : place) * t.stride;
        }
        float* of_columns = sums + (column - begin) * TURNED * LANES;
        if (end - column > AT_ONCE / 2)
            table_block<TURNED, AT_ONCE, As>(x, w.k, columns, AT_ONCE * t.stride, of_columns);
        else table_block<TURNED, AT_ONCE / 2, As>(x, w.k, columns, AT_ONCE * t.stride, of_columns);
    }
    F turned[LANES];
    for (int column = 0; column < end - begin; column += LANES)
        for (int t = 0; t < TURNED; t++) {
#pragma GCC unroll 16
            for (int i = 0; i < LANES; i++)
                turned[i] = load(sums + ((column + i) * TURNED + t) * LANES);
            transpose(turned, values + t * LANES * GROUPED + column, GROUPED);
        }
}

template <class As, class Out>
INLINE void table_product(const Packed& w, const Input& x, int rows, int first, int last,
                          Out&& out) {
    alignas(64) float values[MOST_TURNED * LANES * GROUPED];
    const int vectors = (rows + LANES - 1) / LANES,
              groups = (vectors + MOST_TURNED - 1) / MOST_TURNED;
    for (int begin = first * PANEL; begin < last * PANEL; begin += GROUPED) {
        const int end = begin + GROUPED < last * PANEL ? begin + GROUPED : last * PANEL;
        for (int group = 0, vector = 0; group < groups; group++) {
            const int count = (vectors - vector + groups - group - 1) / (groups - group);
            const float* turned = x.turned + (size_t)vector * LANES * w.k;
            switch (count) {
                case 1: table_group<1, As>(w, turned, begin, end, values); break;
                case 2: table_group<2, As>(w, turned, begin, end, values); break;
                case 3:
                    table_group<(MOST_TURNED < 3 ? 1 : 3), As>(w, turned, begin, end, values);
                    break;
                default: table_group<(MOST_TURNED < 4 ? 1 : 4), As>(w, turned, begin, end, values);
            }
            const int row = vector * LANES, left = rows - row;
            out(Sums{row, left < count * LANES ? left : count * LANES, begin, end - begin, values,
                     GROUPED});
            vector += count;
        }
    }
}

void turn(const float* x, size_t ld, int rows, int k, float* turned) {
    for (int row = 0; row < rows; row += LANES, turned += (size_t)k * LANES) {
        const float* given[LANES];
        for (int i = 0; i < LANES; i++) given[i] = x + (row + i < rows ? row + i : rows - 1) * ld;
        int at = 0;
        for (; at + LANES <= k; at += LANES) {
            F values[LANES];
#pragma GCC unroll 16
            for (int i = 0; i < LANES; i++) values[i] = load(given[i] + at);
            transpose(values, turned + at * LANES, LANES);
        }
        for (; at < k; at++)
            for (int i = 0; i < LANES; i++) turned[at * LANES + i] = given[i][at];
    }
}

#ifndef HAS_TILES
constexpr void (*split)(const float* x, size_t ld, int rows, int k, uint16_t* parts) = nullptr;
constexpr Digits (*digits)(const float* x, int k, int padded, int8_t* first,
                           int8_t* second) = nullptr;
#endif

// Gives `out` all sums, block by block; a row's columns rise.
template <class Out>
INLINE void product(const Packed& w, const Input& x, int rows, int first, int last, Out&& out) {
#ifdef HAS_TILES
    if (x.parts) return float_product(w, x, rows, first, last, out);
    if (w.int8 && rows >= TILED_ROWS) return tiled_product(w, x, rows, first, last, out);
#endif
    if (w.table.rows) {
        switch (w.table.rows.type()) {
            case Half::none: return table_product<Float32>(w, x, rows, first, last, out);
            case Half::bfloat16: return table_product<Bfloat16>(w, x, rows, first, last, out);
            case Half::float16: return table_product<Float16>(w, x, rows, first, last, out);
        }
    }
    constexpr int LARGEST = MOST_ROWS > 2 * WIDE ? MOST_ROWS : 2 * WIDE;
    alignas(64) float values[LARGEST * PANEL];
    const size_t size = w.int8 ? 1 : w.floats.size();
    const int group = w.int8 ? GROUP : 1, at_step = PANEL * group * (int)size;  // bytes of a panel
    const size_t of_panel = (size_t)w.k * PANEL * size;
    const char* weights = w.int8 ? (const char*)w.int8 : w.floats.as<char>();
#ifdef HAS_PAIRED_GROUPS
    const int most = w.int8 && w.order ? MOST_PAIRED_ROWS : MOST_ROWS;
#else
    constexpr int most = MOST_ROWS;
#endif
    for (int from = 0; from < rows; from += ROWS_AT_ONCE) {
        const int to = from + ROWS_AT_ONCE < rows ? from + ROWS_AT_ONCE : rows;
        const int passes = (to - from + most - 1) / most, least = (to - from) / passes;
        const Blocks of_counts[] = {blocks_of(least, w), blocks_of(least + 1, w)};
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
                    if (of_panel > AHEAD) {  // a panel's last steps fetch the first of a next one
                        next.turn = w.k - (int)AHEAD / at_step * group;
                        next.later = weights + (panel + panels) * of_panel;
                    }
                    if (passes > 1)
                        next = {weights + (panel + 1) * of_panel + pass * of_panel / passes,
                                (size_t)(at_step / passes)};
                    (several ? blocks.several : blocks.one)(w, x, row, panel, next, values);
                    out(Sums{row, count, panel * PANEL, panels * PANEL, values, panels * PANEL});
                    panel += panels;
                }
                row += count;
            }
    }
}

// Sums and bias to what f makes of a vector of them and of what was there. Row by row: rows of many
// columns lie on pages of their own.
template <class Finish>
INLINE void finish_rows(const Epilogue& out, const Sums& sums, Finish&& f) {
    if (sums.columns == PANEL && out.columns - sums.column >= PANEL) {  // as nearly always
        F bias[VECTORS];
#pragma GCC unroll 8
        for (int v = 0; v < VECTORS; v++) bias[v] = load(out.bias + sums.column + v * LANES);
        const float* values = sums.values;
        float* y = out.y + sums.row * out.ld + sums.column;
        for (int r = 0; r < sums.count; r++, values += sums.ld, y += out.ld)
#pragma GCC unroll 8
            for (int v = 0; v < VECTORS; v++)
                store(y + v * LANES, f(load(values + v * LANES) + bias[v], y + v * LANES));
        return;
    }
    for (int r = 0; r < sums.count; r++)
        for (int i = 0; i < sums.columns; i += LANES) {
            const int column = sums.column + i, count = out.columns - column;
            const F v = load(sums.values + r * sums.ld + i) + load(out.bias + column);
            float* y = out.y + (sums.row + r) * out.ld + column;
            if (count >= LANES) {
                store(y, f(v, y));
            } else if (count > 0) {  // not all of these columns may be written
                float part[LANES] = {};
                memcpy(part, y, sizeof(float) * count);
                store(part, f(v, part));
                memcpy(y, part, sizeof(float) * count);
            }
        }
}

void finish(const Epilogue& out, const Sums& sums) {
#define FINISH(VALUE)                                                                \
    finish_rows(out, sums, [&](F v, const float* y) __attribute__((always_inline)) { \
        (void)y;                                                                     \
        return VALUE;                                                                \
    })
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

// The products that fill no vector, added to a sum. One function for all types of weights: whether
// a compiler fuses them into the sum depends on the loop.
__attribute__((noinline)) float with_rest(float total, const float* x, const float* w, int count) {
    for (int i = 0; i < count; i++) total += x[i] * w[i];
    return total;
}

// ROWS rows of x with COLUMNS rows of w.
template <int ROWS, int COLUMNS, class As>
INLINE void dots_block(const Dots& d, int row, int column) {
    constexpr int COUNT = ROWS * COLUMNS;
    const float* x = d.x + row * d.ldx;
    auto w = d.w.as<typename As::Stored>() + column * d.ldw;
    constexpr int OF_LINE = 64 / sizeof *w;
    F sums[COUNT] = {};
    int k = 0;
    for (; k + LANES <= d.k; k += LANES) {
        F values[ROWS];
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; r++) values[r] = load(x + r * d.ldx + k);
#pragma GCC unroll 8
        for (int c = 0; c < COLUMNS; c++) {
            F weights = As::load(w + c * d.ldw + k);
            // Of the next columns: rows of weights are too short for the processor to fetch ahead.
            if (k % OF_LINE == 0) __builtin_prefetch(w + (c + COLUMNS) * d.ldw + k, 0, 3);
#pragma GCC unroll 8
            for (int r = 0; r < ROWS; r++) sums[r * COLUMNS + c] += values[r] * weights;
        }
    }
    float totals[COUNT];
    for (int i = 0; i + BLOCK <= COUNT; i += BLOCK) lane_sums(sums + i, totals + i);
    for (int i = COUNT / BLOCK * BLOCK; i < COUNT; i++) totals[i] = sum(sums[i]);
    for (int c = 0; c < COLUMNS; c++) {
        float rest[LANES];
        for (int i = k; i < d.k; i++) rest[i - k] = As::one(w[c * d.ldw + i]);
        for (int r = 0; r < ROWS; r++) {
            float total = totals[r * COLUMNS + c];
            if (k < d.k) total = with_rest(total, x + r * d.ldx + k, rest, d.k - k);
            d.y[(row + r) * d.ldy + column + c] = d.bias ? total + d.bias[column + c] : total;
        }
    }
}

// As many sums as registers hold beside the values.
constexpr int DOT_ROWS = MOST_ROWS * VECTORS >= 24 ? 4 : 3;
constexpr int DOT_COLUMNS = MOST_ROWS * VECTORS >= 24 ? 6 : 4;

template <int COLUMNS, class As>
INLINE void dots_of(const Dots& d, int column) {
    int row = 0;
    for (; row + DOT_ROWS <= d.rows; row += DOT_ROWS)
        dots_block<DOT_ROWS, COLUMNS, As>(d, row, column);
    for (; row + 2 <= d.rows; row += 2) dots_block<2, COLUMNS, As>(d, row, column);
    for (; row < d.rows; row++) dots_block<1, COLUMNS, As>(d, row, column);
}

template <class As>
__attribute__((noinline)) void dots_as(const Dots& d) {
    int column = 0;
    for (; column + DOT_COLUMNS <= d.columns; column += DOT_COLUMNS)
        dots_of<DOT_COLUMNS, As>(d, column);
    for (; column < d.columns; column++) dots_of<1, As>(d, column);
}

void dots(const Dots& d) {
    switch (d.w.type()) {
        case Half::none: return dots_as<Float32>(d);
        case Half::bfloat16: return dots_as<Bfloat16>(d);
        case Half::float16: return dots_as<Float16>(d);
    }
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
                const F v = load(sums.values + r * sums.ld + i) + load(columns.bias + column);
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

// Values above the least of the best take their places.
__attribute__((noinline)) void take_best(Ranking& r, int column, F v) {
    float values[LANES];
    store(values, v);
    for (int i = 0; i < LANES; i++) {
        const float value = values[i];
        if (!(value > (r.count < r.room ? -INFINITY : r.values[r.room - 1]))) continue;
        int place = r.count < r.room ? r.count++ : r.room - 1;
        for (; place > 0 && value > r.values[place - 1]; place--) {
            r.values[place] = r.values[place - 1];
            r.ids[place] = r.ids[place - 1];
        }
        r.values[place] = value;
        r.ids[place] = column + i;
    }
}

// A chunk's sum of e^(x - reference), where the reference is one of its values, and no other is
// more than FAR above it. What lies 87 below it adds 10^-38, which the sum does not notice.
constexpr float FAR = 16;
__attribute__((noinline)) F raised(float& reference, F sums, F v) {
    const float before = reference;
    reference = highest(v);
    return before > -INFINITY ? sums * exponential(splat(before - reference)) : F{};
}
INLINE F with_exponentials(float& reference, F sums, F v) {
    if (exceeds(v, reference + FAR)) sums = raised(reference, sums, v);
    return sums + exponential(v - reference);
}

void rank(const Packed& w, const Input& x, int rows, int first, int last,
          const RankedColumns& columns, Ranking* rankings) {
    const auto take = [&](const Sums& sums) __attribute__((always_inline)) {
        for (int row = 0; row < sums.count; row++) {
            Ranking& r = rankings[sums.row + row];
            F of_chunk = load(r.lanes);
            float reference = r.reference;
            for (int i = 0; i < sums.columns; i += LANES) {
                const int column = sums.column + i, left = columns.count - column;
                if (left <= 0) break;
                F v = load(sums.values + row * sums.ld + i) + load(columns.bias + column);
                if (left < LANES) v = places() < left ? v : splat(-INFINITY);
                if (exceeds(v, r.count < r.room ? -INFINITY : r.values[r.room - 1]))
                    take_best(r, column, v);
                of_chunk = with_exponentials(reference, of_chunk, v);
                if ((column + LANES) % CHUNK && left > LANES) continue;
                r.highest[column / CHUNK] = reference;
                r.sums[column / CHUNK] = sum(of_chunk);
                of_chunk = F{};
                reference = -INFINITY;
            }
            store(r.lanes, of_chunk);
            r.reference = reference;
        }
    };
#ifdef HAS_TILES
    if (w.rest) return digits_product(w, x, rows, first, last, take);
#endif
    product(w, x, rows, first, last, take);
}

}  // namespace
}  // namespace tfn
