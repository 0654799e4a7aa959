// x86-64 with AMX: tiles of int8 where rows are several; everything else is AVX-512's.
#include "avx512_vnni.h"
#include "cpu.h"

namespace tfn {
namespace {
constexpr int TILED_ROWS = 4;  // from which tiles are faster
constexpr int DEPTH = 64;       // values of K that a tile holds
template <class Out>
void tiled_product(const Packed& w, const Input& x, int rows, int first, int last, Out&& out);
}  // namespace
}  // namespace tfn

#define HAS_TILES
#include "linear.inl"
#include "rows.inl"

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
    void shape(int rows) {
        if (rows == rows_) return;
        rows_ = rows;
        const int low = rows < TILE ? rows : TILE, high = rows > TILE ? rows - TILE : 1;
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
    int rows_ = 0;
};

// Sums of up to 32 rows and one panel.
INLINE void tiles_of(const Packed& w, const uint8_t* rows, size_t ld, bool both, int panel,
                     int32_t (*sums)[PANEL]) {
    const int8_t* at = w.int8 + (size_t)panel * w.k * PANEL;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int k = 0; k < w.k; k += DEPTH, at += DEPTH * PANEL) {
        for (int i = 0; i < DEPTH * PANEL; i += 64)
            __builtin_prefetch((const char*)at + 2 * AHEAD + i);
        _tile_loadd(4, rows + k, ld);
        _tile_loadd(6, at, PANEL * GROUP);
        _tile_loadd(7, at + TILE * GROUP, PANEL * GROUP);
        _tile_dpbusd(0, 4, 6);
        _tile_dpbusd(1, 4, 7);
        if (!both) continue;
        _tile_loadd(5, rows + TILE * ld + k, ld);
        _tile_dpbusd(2, 5, 6);
        _tile_dpbusd(3, 5, 7);
    }
    _tile_stored(0, sums[0], sizeof sums[0]);
    _tile_stored(1, sums[0] + TILE, sizeof sums[0]);
    if (!both) return;
    _tile_stored(2, sums[TILE], sizeof sums[0]);
    _tile_stored(3, sums[TILE] + TILE, sizeof sums[0]);
}

template <class Out>
void tiled_product(const Packed& w, const Input& x, int rows, int first, int last, Out&& out) {
    alignas(64) int32_t sums[PAIR][PANEL];
    alignas(64) float values[PAIR][PANEL];
    Tiles tiles;
    auto pairs = [&](int from, int to) {
        for (int panel = first; panel < last; panel++)
            for (int row = from; row < to; row += PAIR) {
                const int count = to - row < PAIR ? to - row : PAIR;
                tiles.shape(count);
                tiles_of(w, (const uint8_t*)x.quantized + row * x.ldq, x.ldq, count > TILE, panel,
                         sums);
                for (int r = 0; r < count; r++)
                    for (int i = 0; i < PANEL; i += LANES)
                        store(values[r] + i, dequantized(w, x.rows[row + r], panel * PANEL + i,
                                                         *(const I*)(sums[r] + i)));
                out(Sums{row, count, panel * PANEL, PANEL, values[0], PANEL});
            }
    };
    // Rows that fill no pair of tiles come last: a change of shape for each panel would be dear.
    const int whole = rows / PAIR * PAIR;
    for (int row = 0; row < whole; row += ROWS_AT_ONCE)
        pairs(row, row + ROWS_AT_ONCE < whole ? row + ROWS_AT_ONCE : whole);
    if (whole < rows) pairs(whole, rows);
}

bool runs_here() { return cpu::amx(); }

}  // namespace
DEFINE_KERNELS(amx)
}  // namespace tfn
