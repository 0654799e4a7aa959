// Products of floats in tiles of bfloat16. Included by "amx.cpp" behind its tiles of int8.
//
// A float32 value x is the sum of three values of 8 bits each, exactly:
//     h = the first 8 bits of x,   m = x - h rounded to 8 bits,   l = x - h - m.
// Tiles multiply parts exactly and add in float32. Of the nine products of two values' parts
//     l h'  m h'  m m'  h m'  h l'  h h'
// are added, in this order; the three others are 2^-22 of |x w| together at most, and of either
// sign. That is four roundings of float32. A sum passes through fewer than one chain of K products:
// for SPLIT values of K each of the six adds the sum of two chains of half as many. What is in
// bfloat16 has no m and l, and float16 no l: their products are 0 and left out, which changes no
// bit of a sum. Infinities may become NaN; numbers below 2^-126, and parts below it, are 0.
//
// Rows lie in parts as tiles read them. Weights lie as vectors multiply them: with few rows it
// takes less time to make their parts while others are multiplied than to read them from memory,
// where they have half as many bytes again.

namespace tfn {
namespace {

constexpr int TILE_VALUES = TILE * SPLIT;  // of 16 bits
constexpr int STEP = 3 * TILE_VALUES;      // values of a tile of rows for SPLIT values of K
constexpr int MOST_STEPS = 4;              // whose parts of weights stay in the first cache
constexpr size_t PREFETCHED = 16 * 1024;   // bytes of weights that are fetched ahead
static_assert(2 * LANES == SPLIT && PANEL == PAIR, "a step is two vectors, a panel two tiles");
static_assert(SPLIT_ROWS == TILE && SPLIT_BLOCK == PAIR, "a block is two tiles of rows");

// COUNT parts of two vectors, `apart` from one another; the values of each pair lie side by side.
template <int COUNT>
INLINE void write_parts(F even, F odd, uint16_t* to, size_t apart) {
    constexpr int32_t UPPER = (int32_t)0xffff0000, HALF = 0x8000;
#pragma GCC unroll 3
    for (int part = 0; part < COUNT; part++, to += apart) {
        I a = (I)even, b = (I)odd;
        if (part == 1) a += HALF, b += HALF;  // m; l is what it is
        const I upper_a = a & UPPER, upper_b = b & UPPER;
        *(I*)to = (I)((U)a >> 16) | upper_b;
        even -= (F)upper_a;
        odd -= (F)upper_b;
    }
}

// [step][part][TILE][SPLIT]; rows that are not there are 0.
void split(const float* x, size_t ld, int rows, int k, uint16_t* parts) {
    for (int row = 0; row < TILE; row++, x += ld) {
        uint16_t* to = parts + row * SPLIT;
        for (int at = 0; at < k; at += SPLIT, to += STEP) {
            const int left = row < rows ? k - at : 0;
            if (left >= SPLIT) {
                write_parts<3>(load(x + at), load(x + at + LANES), to, TILE_VALUES);
                continue;
            }
            float rest[SPLIT] = {};
            if (left) memcpy(rest, x + at, sizeof(float) * left);
            write_parts<3>(load(rest), load(rest + LANES), to, TILE_VALUES);
        }
    }
}

template <class As>
constexpr int parts_of() {
    return As::TYPE == Half::none ? 3 : As::TYPE == Half::float16 ? 2 : 1;
}

// Parts of a panel's weights, of some steps.
template <class As>
struct PanelParts {
    static constexpr int PARTS = parts_of<As>(), EACH = TILE / 4;
    alignas(64) uint16_t at[MOST_STEPS][PARTS][2][TILE_VALUES];

    // A quarter of a step, whose weights there are `left` values of K of.
    INLINE void split(int step, int quarter, const typename As::Stored* weights, int left) {
        for (int i = quarter * EACH; i < quarter * EACH + EACH; i++) {
            F even[2] = {}, odd[2] = {};
            if (i < left) As::load_panel(weights + i * PANEL, even);
            if (i + TILE < left) As::load_panel(weights + (i + TILE) * PANEL, odd);
            const char* ahead = (const char*)(weights + 2 * i * PANEL) + PREFETCHED;
            for (size_t line = 0; line < 2 * PANEL * sizeof *weights; line += 128)
                __builtin_prefetch(ahead + line, 0, 2);  // and its neighbour
#pragma GCC unroll 2
            for (int tile = 0; tile < 2; tile++)
                write_parts<PARTS>(even[tile], odd[tile], at[step][0][tile] + i * 2 * LANES,
                                   2 * TILE_VALUES);
        }
    }
};

// Up to 32 rows, of which 16 lie in the first tiles, and the others in the second, if there are:
//     0 1   sums of the first rows      4   their parts      6 7   parts of a panel's weights
//     2 3   sums of the others          5
INLINE void zero_sums() {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
}
INLINE void load_sums(const float (*sums)[PANEL], bool tall) {
    _tile_loadd(0, sums[0], sizeof *sums);
    _tile_loadd(1, sums[0] + TILE, sizeof *sums);
    if (!tall) return;
    _tile_loadd(2, sums[TILE], sizeof *sums);
    _tile_loadd(3, sums[TILE] + TILE, sizeof *sums);
}
INLINE void store_sums(float (*sums)[PANEL], bool tall) {
    _tile_stored(0, sums[0], sizeof *sums);
    _tile_stored(1, sums[0] + TILE, sizeof *sums);
    if (!tall) return;
    _tile_stored(2, sums[TILE], sizeof *sums);
    _tile_stored(3, sums[TILE] + TILE, sizeof *sums);
}

// A step's products; each loads one side anew. between(i) for i below 4 does something else
// meanwhile. `second`: from the first tile of rows to the second, or 0.
template <int PARTS, class Between>
INLINE void step_of(const uint16_t* rows, size_t second, const uint16_t (*weights)[2][TILE_VALUES],
                    Between&& between) {
    const auto take_rows = [&](int part) __attribute__((always_inline)) {
        _tile_stream_loadd(4, rows + part * TILE_VALUES, 2 * SPLIT);
        if (second) _tile_stream_loadd(5, rows + second + part * TILE_VALUES, 2 * SPLIT);
    };
    const auto take_weights = [&](int part) __attribute__((always_inline)) {
        _tile_loadd(6, weights[part][0], 2 * SPLIT);
        _tile_loadd(7, weights[part][1], 2 * SPLIT);
    };
    const auto multiply = [&]() __attribute__((always_inline)) {
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        if (!second) return;
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    };
    take_weights(0);
    take_rows(2);
    multiply();
    take_rows(1);
    between(0);
    multiply();
    if constexpr (PARTS > 1) {
        take_weights(1);
        between(1);
        multiply();
    }
    take_rows(0);
    if constexpr (PARTS == 1) between(1);
    between(2);
    if constexpr (PARTS > 1) multiply();
    if constexpr (PARTS > 2) {
        take_weights(2);
        between(3);
        multiply();
    }
    if constexpr (PARTS > 1) take_weights(0);
    if constexpr (PARTS < 3) between(3);
    multiply();
}

// Some blocks of rows, from a multiple of PAIR on, and panels [first, last). All blocks meet the
// parts of some steps of a panel; behind the last block, those of the next steps take their places.
template <class As, class Out>
__attribute__((noinline)) void blocks_product(const Packed& w, const Input& x, int from, int to,
                                              int first, int last, PanelParts<As>& parts,
                                              float (*sums)[PAIR][PANEL], Out&& out) {
    using Stored = typename As::Stored;
    constexpr int PARTS = parts_of<As>();
    const int all_steps = (w.k + SPLIT - 1) / SPLIT, blocks = (to - from + PAIR - 1) / PAIR;
    const auto weights_at = [&](int panel, int step) __attribute__((always_inline)) {
        return w.floats.as<Stored>() + ((size_t)panel * w.k + step * SPLIT) * PANEL;
    };
    struct {
        int slot = 0, left = 0;
        const Stored* weights = nullptr;
    } next;
    const auto split_quarter = [&](int quarter) __attribute__((always_inline)) {
        if (next.weights) parts.split(next.slot, quarter, next.weights, next.left);
    };
    const auto split_now = [&] {
        for (int quarter = 0; quarter < 4; quarter++) split_quarter(quarter);
        next.weights = nullptr;
    };
    const auto split_next = [&](int slot, int panel, int step) __attribute__((always_inline)) {
        next.slot = slot;
        next.left = w.k - step * SPLIT;
        next.weights = weights_at(panel, step);
    };
    const auto steps_from = [&](int step) {
        return all_steps - step < MOST_STEPS ? all_steps - step : MOST_STEPS;
    };
    for (int step = 0; step < steps_from(0); step++) {
        split_next(step, first, step);
        split_now();
    }
    for (int panel = first; panel < last; panel++) {
        for (int begin = 0; begin < all_steps; begin += MOST_STEPS) {
            const int steps = steps_from(begin), end = begin + steps;
            const int next_panel = end < all_steps ? panel : panel + 1;
            const int next_begin = end < all_steps ? end : 0;
            const int next_steps = next_panel < last ? steps_from(next_begin) : 0;
            for (int block = 0; block < blocks; block++) {
                const int row = from + block * PAIR;
                const uint16_t* rows = x.parts + row / TILE * x.ldp + (size_t)begin * STEP;
                const size_t second = to - row > TILE ? x.ldp : 0;
                if (!begin) zero_sums();
                else if (blocks > 1) load_sums(sums[block], second);
                for (int step = 0; step < steps; step++, rows += STEP) {
                    step_of<PARTS>(rows, second, parts.at[step], split_quarter);
                    next.weights = nullptr;
                    if (block + 1 == blocks && step < next_steps)
                        split_next(step, next_panel, next_begin + step);
                }
                if (end == all_steps || blocks > 1) store_sums(sums[block], second);
            }
            if (next_steps < 2) split_now();  // it is needed at once
            for (int step = steps; step < next_steps; step++) {
                split_now();
                split_next(step, next_panel, next_begin + step);
            }
        }
        for (int block = 0; block < blocks; block++) {
            const int row = from + block * PAIR, count = to - row < PAIR ? to - row : PAIR;
            out(Sums{row, count, panel * PANEL, PANEL, sums[block][0], PANEL});
        }
    }
}

template <class As, class Out>
INLINE void float_product_of(const Packed& w, const Input& x, int rows, int first, int last,
                             Out&& out) {
    PanelParts<As> parts;
    alignas(64) float sums[MOST_SPLIT_BLOCKS][PAIR][PANEL];
    Tiles tiles;
    tiles.shape(PAIR);
    const int most = split_rows_together(w.k) / PAIR, blocks = (rows + PAIR - 1) / PAIR;
    const int groups =
        (blocks + most - 1) / most;  // of rows, of which all meet some steps' weights
    for (int group = 0, from = 0; group < groups; group++) {
        const int end = blocks * (group + 1) / groups * PAIR, to = end < rows ? end : rows;
        blocks_product<As>(w, x, from, to, first, last, parts, sums, out);
        from = to;
    }
}

template <class Out>
void float_product(const Packed& w, const Input& x, int rows, int first, int last, Out&& out) {
    if (first == last) return;
    switch (w.floats.type()) {
        case Half::none: return float_product_of<Float32>(w, x, rows, first, last, out);
        case Half::bfloat16: return float_product_of<Bfloat16>(w, x, rows, first, last, out);
        case Half::float16: return float_product_of<Float16>(w, x, rows, first, last, out);
    }
}

}  // namespace
}  // namespace tfn
