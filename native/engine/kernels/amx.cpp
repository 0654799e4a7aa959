// x86-64 with AMX: tiles of int8 where rows are several, and of bfloat16 for floats of whole
// sources and of beams; everything else is AVX-512's.
#include "avx512_vnni.h"
#include "cpu.h"

namespace tfn {
namespace {
constexpr int TILED_ROWS = 4;  // from which tiles are faster
constexpr int DEPTH = 64;      // values of K that a tile holds
template <class Out>
void tiled_product(const Packed& w, const Input& x, int rows, int first, int last, Out&& out);
template <class Out>
void digits_product(const Packed& w, const Input& x, int rows, int first, int last, Out&& out);
template <class Out>
void float_product(const Packed& w, const Input& x, int rows, int first, int last, Out&& out);
void split(const float* x, size_t ld, int rows, int k, uint16_t* parts);
Digits digits(const float* x, int k, int padded, int8_t* first, int8_t* second);
}  // namespace
}  // namespace tfn

#define HAS_TILES
#include "linear.inl"
#include "rows.inl"
#include "sources.inl"

namespace tfn {
namespace {

// A tile has up to 16 rows of 64 bytes. Two tiles of rows meet the two that hold a panel's columns:
//     0 1   sums of the first rows      4   rows, 64 values of K each      6 7   weights
//     2 3   sums of the others          5
constexpr int TILE = 16, PAIR = 2 * TILE;
static_assert(PANEL == PAIR, "a panel is two tiles");

struct alignas(64) TileConfig {
    uint8_t palette = 1, start = 0, reserved[14] = {};
    uint16_t bytes[16] = {};
    uint8_t rows[16] = {};
};

// Tiles as they were, which are another library's, come back when it ends.
class Tiles {
public:
    Tiles() { _tile_storeconfig(&before_); }
    ~Tiles() { configure(before_); }
    void shape(int rows) { shape(rows < TILE ? rows : TILE, rows > TILE ? rows - TILE : 1); }
    void shape(int low, int high) {
        if (low == low_ && high == high_) return;
        low_ = low;
        high_ = high;
        TileConfig config;
        const int of_tile[8] = {low, low, high, high, low, high, DEPTH / GROUP, DEPTH / GROUP};
        for (int i = 0; i < 8; i++) {
            config.rows[i] = (uint8_t)of_tile[i];
            config.bytes[i] = DEPTH;
        }
        configure(config);
    }

private:
    static void configure(const TileConfig& config) {
        // The compiler knows of the first bytes alone that they are read.
        asm volatile("" : : "r"(&config) : "memory");
        _tile_loadconfig(&config);
    }
    TileConfig before_;
    int low_ = 0, high_ = 0;
};

// Sums of up to 32 rows and one panel.
struct Tiled {
    int row, count, panel;
    alignas(64) int32_t sums[PAIR][PANEL];
};

// Weights that are fetched meanwhile: so many bytes from `at` on at each step of k.
struct Ahead {
    const int8_t* at;
    int bytes;
};

// Meanwhile between(step, steps) does what is left of the block before. SEVERAL: other rows meet
// the same weights, which are fetched into the second cache: the first one holds rows as well.
template <bool SEVERAL, class Between>
INLINE void tiles_of(const Packed& w, const Input& x, Ahead ahead, Tiled& block,
                     Between&& between) {
    const int8_t* at = w.int8 + (size_t)block.panel * w.k * PANEL;
    const size_t ld = x.ldq;
    const uint8_t* rows = (const uint8_t*)x.quantized + block.row * ld;
    const bool both = block.count > TILE;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    const int steps = w.k / DEPTH;
    for (int step = 0; step < steps; step++, rows += DEPTH, at += DEPTH * PANEL) {
        for (int i = 0; i < ahead.bytes; i += 64)
            __builtin_prefetch(ahead.at + i, 0, SEVERAL ? 2 : 3);
        ahead.at += ahead.bytes;
        _tile_loadd(4, rows, ld);
        _tile_stream_loadd(6, at, PANEL * GROUP);
        _tile_stream_loadd(7, at + TILE * GROUP, PANEL * GROUP);
        _tile_dpbusd(0, 4, 6);
        _tile_dpbusd(1, 4, 7);
        if (both) {
            _tile_loadd(5, rows + TILE * ld, ld);
            _tile_dpbusd(2, 5, 6);
            _tile_dpbusd(3, 5, 7);
            between(step + 1, steps);
        }
    }
    _tile_stored(0, block.sums[0], sizeof block.sums[0]);
    _tile_stored(1, block.sums[0] + TILE, sizeof block.sums[0]);
    if (!both) return;
    _tile_stored(2, block.sums[TILE], sizeof block.sums[0]);
    _tile_stored(3, block.sums[TILE] + TILE, sizeof block.sums[0]);
}

// Sums of many rows are given out while the next tiles are multiplied: what tiles stored cannot be
// read at once. A few rows wait for their weights instead.
template <class Out>
void tiled_product(const Packed& w, const Input& x, int rows, int first, int last, Out&& out) {
    constexpr int GIVEN = 8;          // rows that are given out between two steps, or a multiple
    constexpr int LONG = 8 * DEPTH;   // K, from which that is faster
    constexpr int STAY = 512 * 1024;  // bytes of rows that stay in the second cache
    Tiled blocks[2];
    alignas(64) float values[TILE][PANEL];
    Tiles tiles;
    const auto give = [&](const Tiled& block, int from, int to) __attribute__((always_inline)) {
        static_assert(PANEL == 2 * LANES, "a row's sums are two vectors");
        const int column = block.panel * PANEL;
        const Columns low(w, column), high(w, column + LANES);
        for (int row = from; row < to; row += TILE) {
            const int count = to - row < TILE ? to - row : TILE;
            for (int r = 0; r < count; r++) {
                const Quantization how = x.rows[block.row + row + r];
                const int32_t* sums = block.sums[row + r];
                store(values[r], low.dequantized(how, *(const I*)sums));
                store(values[r] + LANES, high.dequantized(how, *(const I*)(sums + LANES)));
            }
            out(Sums{block.row + row, count, column, PANEL, values[0], PANEL});
        }
    };
    const auto give_part = [&](const Tiled& block, int from, int to)
                               __attribute__((noinline)) { give(block, from, to); };
    const auto pairs_of = [&](int from, int to) {
        const int pairs = (to - from + PAIR - 1) / PAIR;
        const Tiled* before = nullptr;
        int turn = 0;
        for (int panel = first; panel < last; panel++)
            for (int pair = 0; pair < pairs; pair++, turn ^= 1) {
                Tiled& block = blocks[turn];
                block.row = from + pair * PAIR;
                block.count = to - block.row < PAIR ? to - block.row : PAIR;
                block.panel = panel;
                tiles.shape(block.count);
                int done = 0;
                const auto between = [&](int step, int steps) __attribute__((always_inline)) {
                    if (!before) return;
                    const int part = before->count * step / steps / GIVEN * GIVEN;
                    const int end = step == steps ? before->count : part;
                    if (end > done) give_part(*before, done, end);
                    done = end > done ? end : done;
                };
                const int8_t* weights = w.int8 + (size_t)panel * w.k * PANEL;
                if (pairs == 1) {
                    tiles_of<false>(w, x, {weights + 2 * AHEAD, DEPTH * PANEL}, block, between);
                } else {  // each fetches a part of the next panel
                    const int part = (DEPTH * PANEL / pairs + 63) / 64 * 64;
                    weights += (size_t)w.k * PANEL + (size_t)pair * part * (w.k / DEPTH);
                    tiles_of<true>(w, x, {weights, part}, block, between);
                }
                before = &block;
                if (block.count > TILE && w.k >= LONG) continue;
                give(block, 0, block.count);
                before = nullptr;
            }
        if (before) give_part(*before, 0, before->count);
    };
    // Rows that fill no pair of tiles come last: a change of shape for each panel would be dear.
    const int most = w.k * PAIR < STAY ? STAY / w.k / PAIR * PAIR : PAIR,
              whole = rows / PAIR * PAIR;
    for (int row = 0; row < whole; row += most)
        pairs_of(row, row + most < whole ? row + most : whole);
    if (whole < rows) pairs_of(whole, rows);
}

// A row to two digits. Norms are those of x / scale, whose squares are neither too small nor too
// large for a float, and are rounded up by more than the sums are off.
Digits digits(const float* x, int k, int padded, int8_t* first, int8_t* second) {
    constexpr float POINT = 12582912.0f;  // 1.5 * 2^23: see `round_row`
    const auto values = [&](int at) __attribute__((always_inline)) {
        if (at + LANES <= k) return load(x + at);
        float rest[LANES] = {};
        memcpy(rest, x + at, sizeof(float) * (k - at));
        return load(rest);
    };
    F most = F{};
    for (int at = 0; at < k; at += LANES) most = larger(most, absolute(values(at)));
    float size = highest(most);
    if (!(size > 1e-30f)) size = 1e-30f;  // all zeros
    const float inverse = 127 / size, scale = size / 127;
    const auto rounded = [](F v) __attribute__((always_inline)) {
        return smaller(larger(v + POINT - POINT, splat(-127)), splat(127));
    };
    F of_first = F{}, of_second = F{}, of_left = F{};
    int at = 0;
    for (; at < k; at += LANES) {
        const F v = values(at) * inverse, q = rounded(v), r = rounded((v - q) * DIGIT);
        const F left = v - q - r * (1 / DIGIT);
        of_first += q * q;
        of_second += r * r;
        of_left += left * left;
        store_values((Value*)first + at, q, 0);  // padded is whole vectors
        store_values((Value*)second + at, r, 0);
    }
    memset(first + at, 0, padded - at);
    memset(second + at, 0, padded - at);
    const auto norm = [&](F squares) { return std::sqrt(sum(squares)) * scale * 1.0001f; };
    const float of_rest = norm(of_second) / DIGIT;
    return {scale, norm(of_first) + of_rest, of_rest, norm(of_left)};
}

// Products of two digits: sums of up to 16 rows and a panel. Few rows lie in one tile, first and
// second digits by turns, and meet a panel's:
//     0 1   sums with first digits      4   rows      6 7   weights, first and then second digits
//     2 3   sums with second ones
// More rows have tiles of first and of second digits:
//     0 1   first with first            4   rows, first digits      6 7   weights
//     2 3   first with second           5   second digits
// Products of second digits are left out. On some machines a product of a tile that was just loaded
// takes three times as long as another one.
struct Parted {
    int row, again, count, panel;  // `again` of the rows were given before
    alignas(64) int32_t sums[4][TILE][TILE];
};
constexpr int BY_TURNS = TILE / 2;  // rows

template <bool APART, class Between>
INLINE void parted_tiles(const Packed& w, const Input& x, Ahead ahead, Ahead second_ahead,
                         Parted& block, Between&& between) {
    const size_t from = (size_t)block.panel * w.k * PANEL, ld = x.ldq, of_row = PANEL * GROUP;
    const int8_t *at = w.int8 + from, *second = w.rest + from;
    const uint8_t* rows = (const uint8_t*)x.quantized + 2 * block.row * ld;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    const int steps = w.k / DEPTH;
    for (int step = 0; step < steps; step++) {
        for (Ahead* each : {&ahead, &second_ahead}) {
            for (int i = 0; i < each->bytes; i += 64) __builtin_prefetch(each->at + i, 0, 2);
            each->at += each->bytes;
        }
        if constexpr (APART) {  // two products of a sum are three of them apart
            _tile_stream_loadd(4, rows, 2 * ld);
            _tile_stream_loadd(5, rows + ld, 2 * ld);
            _tile_loadd(6, at, of_row);
            _tile_dpbssd(2, 5, 6);
            _tile_dpbssd(0, 4, 6);
            _tile_loadd(7, at + DEPTH, of_row);
            _tile_dpbssd(3, 5, 7);
            _tile_loadd(6, second, of_row);
            _tile_dpbssd(2, 4, 6);
            _tile_dpbssd(1, 4, 7);
            _tile_loadd(7, second + DEPTH, of_row);
            _tile_dpbssd(3, 4, 7);
        } else {
            _tile_loadd(4, rows, ld);
            _tile_stream_loadd(6, at, of_row);
            _tile_dpbssd(0, 4, 6);
            _tile_stream_loadd(7, at + DEPTH, of_row);
            _tile_dpbssd(1, 4, 7);
            _tile_stream_loadd(6, second, of_row);
            _tile_dpbssd(2, 4, 6);
            _tile_stream_loadd(7, second + DEPTH, of_row);
            _tile_dpbssd(3, 4, 7);
        }
        between(step + 1, steps);
        rows += DEPTH;
        at += DEPTH * PANEL;
        second += DEPTH * PANEL;
    }
    _tile_stored(0, block.sums[0], TILE * sizeof(int32_t));
    _tile_stored(1, block.sums[1], TILE * sizeof(int32_t));
    _tile_stored(2, block.sums[2], TILE * sizeof(int32_t));
    _tile_stored(3, block.sums[3], TILE * sizeof(int32_t));
}

// In one function, or products might be fused into sums otherwise in one kind of tiles than in the
// other.
template <class Out>
__attribute__((noinline)) void give_parted(const Packed& w, const Input& x, bool apart,
                                           const Parted& block, int from, int to, Out&& out) {
    if (from < block.again) from = block.again;
    if (from >= to) return;
    alignas(64) float values[TILE][PANEL];
    const int column = block.panel * PANEL;
    const F scales[2] = {load(w.scales + column), load(w.scales + column + LANES)};
    for (int r = from; r < to; r++)
#pragma GCC unroll 2
        for (int half = 0; half < 2; half++) {
            const auto sums = [&](int tile, int row) __attribute__((always_inline)) {
                return *(const I*)block.sums[tile + half][row];
            };
            const I first = sums(0, apart ? r : 2 * r);
            const I mixed = apart ? sums(2, r) : sums(0, 2 * r + 1) + sums(2, 2 * r);
            store(values[r] + half * LANES, (to_float(first) + to_float(mixed) * (1 / DIGIT)) *
                                                (scales[half] * x.rows[block.row + r].scale));
        }
    out(Sums{block.row + from, to - from, column, PANEL, values[from], PANEL});
}

template <bool APART, class Out>
INLINE void parted_product(const Packed& w, const Input& x, int rows, int first, int last,
                           Out&& out) {
    constexpr int GIVEN = 2;  // rows between two steps, or a multiple
    const int blocks = (rows + TILE - 1) / TILE, each = (rows + blocks - 1) / blocks;
    const size_t of_panel = (size_t)w.k * PANEL;
    // Of the next panel's digits of each kind, at every step of all blocks that meet this one.
    const int ahead = (DEPTH * PANEL / blocks + 63) / 64 * 64;
    Parted given[2];
    Tiles tiles;
    tiles.shape(APART ? each : 2 * each, APART ? each : 2 * each);
    const Parted* before = nullptr;
    int turn = 0;
    for (int panel = first; panel < last; panel++) {
        size_t next = (panel + 1) * of_panel;
        for (int i = 0; i < blocks; i++, turn ^= 1) {
            Parted& block = given[turn];
            const int row = i * each < rows - each ? i * each : rows - each;
            block.row = row;
            block.again = i * each - row;
            block.count = each;
            block.panel = panel;
            int done = 0;
            const auto between = [&](int step, int steps) __attribute__((always_inline)) {
                if (!before) return;
                const int part = before->count * step / steps / GIVEN * GIVEN;
                const int end = step == steps ? before->count : part;
                if (end > done) give_parted(w, x, APART, *before, done, end, out);
                done = end;
            };
            parted_tiles<APART>(w, x, {w.int8 + next, ahead}, {w.rest + next, ahead}, block,
                                between);
            next += (size_t)ahead * (w.k / DEPTH);
            before = &block;
        }
    }
    if (before) give_parted(w, x, APART, *before, 0, before->count, out);
}

template <class Out>
void digits_product(const Packed& w, const Input& x, int rows, int first, int last, Out&& out) {
    const int blocks = (rows + TILE - 1) / TILE, each = (rows + blocks - 1) / blocks;
    if (each > BY_TURNS) parted_product<true>(w, x, rows, first, last, out);
    else parted_product<false>(w, x, rows, first, last, out);
}

}  // namespace
}  // namespace tfn

#include "amx_floats.inl"

namespace tfn {
namespace {

bool runs_here() { return cpu::amx(); }

}  // namespace
DEFINE_KERNELS(amx)
}  // namespace tfn
