// The inner loops, which exist once for every instruction set; `kernels()` chooses at run time.
//
// Axes: M rows, K values of an input row, N columns of an output row. A weight matrix is packed in
// panels of `panel` columns: float32 [N / panel][K][panel],
// int8 [N / panel][K / group][panel][group]. float16 lies as float32; bfloat16 too, but that values
// of two vectors alternate: a word of both is widened by a shift and a mask.
// Sums have a fixed order: a value never depends on how many rows or columns share a call.
#pragma once
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "halves.h"

namespace tfn {

enum class Activation { none, relu, gelu, gelu_tanh, quick_gelu, silu };
enum class NormKind { layer, annotated, rms };

// What becomes of the columns of a product.
enum class Then {
    store,     // y = f(product + bias)
    add,       // y = scale * y + product + bias
    multiply,  // y = y * (product + bias)
};

struct Epilogue {
    float* y;  // (M, N), rows `ld` apart
    size_t ld;
    const float* bias;  // (N,), padded to whole panels
    int columns;        // of y that may be written; the last panel may have more
    Then then = Then::store;
    Activation activation = Activation::none;
    float scale = 1.0f;
};

// Weights as they lie in a file: rows (N, K), `stride` apart.
struct Table {
    Values rows;
    size_t stride = 0;
    const int32_t* columns = nullptr;  // which of the rows; null for the first ones
    int count = 0;                     // of columns
};

// Weights of a product, packed.
struct Packed {
    int k = 0;                        // K, for int8 padded with zeros to whole groups
    Values floats = {};               // either these
    const int8_t* int8 = nullptr;     // or these, -127 to 127
    const float* scales = nullptr;    // int8: of each column, padded to whole panels
    const int32_t* sums = nullptr;    // int8: of each column's values, padded as well
    int largest = 127;                // int8: no value, without its sign, is above it
    const uint16_t* order = nullptr;  // int8: of each panel, as `pair_groups` leaves it, or null
    Table table = {};                 // or these, not packed
    const int8_t* rest = nullptr;     // int8: second digits, which lie as the first ones do
};

// An integer q of a row stands for scale * (q - zero).
struct Quantization {
    float scale;
    int32_t zero;
};

// Where integers have two digits, -127 to 127 each, q and r stand for scale * (q + r / DIGIT): the
// second ones are what is left of values that were rounded, half of a first one at most.
constexpr float DIGIT = 254;
struct Digits {  // of a row x, whose digits alone are x' and r'
    float scale;
    float length, second, error;  // |x'| + |r'|, |r'| and |x - x' - r'|, rounded up
};

// Rows that are multiplied: float32, or quantised each in its own way.
struct Input {
    const float* f32 = nullptr;
    size_t ld = 0;
    const void* quantized = nullptr;
    size_t ldq = 0;  // in values
    const Quantization* rows = nullptr;
    const float* turned = nullptr;    // for a table; see `turn`
    const uint16_t* parts = nullptr;  // floats of many rows, where a set has `split`
    size_t ldp = 0;                   // from SPLIT_ROWS of them to the next
};

// One head of one query over `n` positions, which lie anywhere.
constexpr int BLOCK = 8;          // positions that are looked at together
constexpr int MOST_LANES = 16;    // floats of the widest vector
constexpr int MOST_PANEL = 64;    // columns of the widest panel
constexpr int MOST_TOGETHER = 8;  // heads that are attended with at a time
struct Attend {
    const float* query;
    const float* const* positions;
    size_t key, value;  // where this head's keys and values begin in each
    int n;
    int dim;  // values of a head, whole vectors
    float scale;
    const float* bias;   // added to the scaled scores, or null; room as for the weights
    float* weights;      // (n,), written; there is room for n rounded up to MOST_LANES
    float* context;      // (dim,), written
    bool keeps_weights;  // they are read afterwards; or they may be anything
};

// One head of some queries of a source over its `n` positions.
struct AttendSource {
    const float* queries;  // (rows, dim), `ld` apart
    size_t ld;
    int rows;
    const float *keys, *values;  // as `pack_source` leaves them
    int n;
    int dim;  // values of a head, whole vectors
    float scale;
    float* scores;  // (rows, n), `lds` apart, which is whole panels; room
    size_t lds;
    float* factors;   // (rows,), room
    uint16_t* parts;  // room where a set has `split`: of SPLIT_ROWS rows after another, each as
                      // many as n or dim values have
    float* context;   // (rows, dim), `ldc` apart, written
    size_t ldc;
};

// Columns whose logit may be the largest, by upper bounds of their logits; see "vocabulary.h".
struct Screen {
    float length = 0;         // |x'|, of the dequantised row x'
    float error = 0;          // of what |w| is a part of the bound
    float best = -INFINITY;   // lower bound of the largest logit
    int count = 0, room = 0;  // candidates found, and how many there is room for
    bool full = false;        // there were more
    int32_t* ids = nullptr;   // of candidates
    float* upper = nullptr;   // their bounds
};
struct ScreenColumns {
    const float* bias;     // of each column
    const float* errors;   // |w - w'|
    const float* lengths;  // |w|
    bool exact;            // the products are the logits themselves: the first of the best is kept
};

// What a search needs of a row's logits: the best ones, and sums of exponentials, from which their
// normaliser is made.
constexpr int CHUNK = 256;  // columns of a sum
struct Ranking {
    int room = 0, count = 0;  // the best, and how many there are so far
    float* values = nullptr;  // best first, ties by the lower column
    int32_t* ids = nullptr;
    float* highest = nullptr;  // of each chunk: sum * e^highest is its sum of exponentials
    float* sums = nullptr;
    float reference = -INFINITY;  // of the present chunk
    float lanes[MOST_LANES] = {};
};
struct RankedColumns {
    const float* bias;  // of all columns, padded to whole panels
    int count;          // of all; the last panel may have more
};

// Rows (M, K) times rows (N, K) as they lie in a file: y = x w^T + bias.
struct Dots {
    const float* x;
    size_t ldx;
    int rows;
    Values w;
    size_t ldw;
    int columns;
    int k;
    const float* bias;  // of the columns, or null
    float* y;
    size_t ldy;
};

struct Kernels {
    const char* name;
    int lanes;        // floats of a vector
    int panel;        // columns of a panel
    int group;        // values that an integer product takes together
    int depth;        // K of integer products is a multiple of it
    int value_bytes;  // of a quantised value
    bool (*runs_here)();
    // Panels [first, last) of a product of M rows.
    void (*linear)(const Packed& w, const Input& x, int rows, int first, int last,
                   const Epilogue& out);
    // The same, of int8 weights, into screens of the rows, one a row.
    void (*screen)(const Packed& w, const Input& x, int rows, int first, int last,
                   const ScreenColumns& columns, Screen* screens);
    // The same, of any weights, into rankings of the rows, one a row. What is -inf is never among
    // the best. Weights with second digits meet rows with theirs, each behind the first ones of
    // its row.
    void (*rank)(const Packed& w, const Input& x, int rows, int first, int last,
                 const RankedColumns& columns, Ranking* rankings);
    // Rows (M, K) as products with a table read them: [M / lanes][K][lanes], the last ones again
    // where rows are too few.
    void (*turn)(const float* x, size_t ld, int rows, int k, float* turned);
    // Up to SPLIT_ROWS rows in parts, `parts_size` values; null in sets without. Products with them
    // are faster where rows are many, and have sums of their own: no matter how many, all rows of
    // a kind of product take one way.
    void (*split)(const float* x, size_t ld, int rows, int k, uint16_t* parts);
    // Sums in the order of one chain of vectors, whatever M and N are.
    void (*dots)(const Dots& d);
    // Groups of a panel's K whose products may be added in 16 bits, for weights up to `largest` in
    // all panels; null in sets without such sums. order (order_size(k),): how many pairs there are,
    // the groups of each, and the groups that are in none.
    void (*pair_groups)(const int8_t* panel, int k, int largest, uint16_t* order);
    // A row to integers, for weights up to `largest`; those behind k are set to 0 up to `padded`,
    // where weights are 0 as well.
    Quantization (*quantize)(const float* x, int k, int padded, int largest, void* quantized);
    // A row to two digits, with zeros up to `padded`; null in sets whose products of floats are as
    // fast.
    Digits (*digits)(const float* x, int k, int padded, int8_t* first, int8_t* second);
    // |x'| and |x - x'| of a quantised row x', rounded up.
    void (*quantization_error)(const float* x, const void* quantized, Quantization how, int k,
                               float* length, float* error);
    // y may be x; values behind d are set to 0 up to `padded`. bias may be null.
    void (*norm)(NormKind kind, float eps, const float* weight, const float* bias, const float* x,
                 float* y, int d, int padded);
    // At most MOST_TOGETHER heads, of any queries.
    void (*attend)(const Attend* heads, int count);
    // Keys and values (n, dim) of a head, rows `ld` apart, for attend_source: (n, dim) with n and
    // (dim, n) with dim rounded up to whole panels.
    void (*pack_source)(const float* keys, const float* values, size_t ld, int n, int dim,
                        float* to_keys, float* to_values);
    void (*attend_source)(const AttendSource& a);
    // The largest of n values and the lowest index of it.
    int (*argmax)(const float* x, int n);
    // The `count` largest of n values and their indices, ties by the lower index.
    void (*top)(const float* x, int n, int count, float* values, int32_t* ids);
    // Natural log of the sum of exponentials, chunk by chunk.
    double (*log_sum_exp)(const float* x, int n);
};

// Of weights that a set with `pair_groups` multiplies; the order of a longer K has no room.
constexpr int PAIRED_GROUP = 4, MOST_PAIRED = 65535 * PAIRED_GROUP;
inline size_t order_size(int k) { return 1 + (size_t)k / PAIRED_GROUP; }

// Sets with `split` multiply floats as three parts of 16 bits, SPLIT values of K at a time.
constexpr int SPLIT = 32, SPLIT_ROWS = 16;
inline size_t parts_size(int k) { return (size_t)(k + SPLIT - 1) / SPLIT * SPLIT * 3 * SPLIT_ROWS; }

// Rows in parts that stay in the second cache while all panels meet them, in blocks.
constexpr int SPLIT_BLOCK = 2 * SPLIT_ROWS, MOST_SPLIT_BLOCKS = 6;
inline int split_rows_together(int k) {
    constexpr size_t STAY = 1200 * 1024;  // bytes
    const size_t of_block = 2 * parts_size(k > 0 ? k : 1) * sizeof(uint16_t), fit = STAY / of_block;
    return SPLIT_BLOCK * (fit < 1 ? 1 : fit < MOST_SPLIT_BLOCKS ? (int)fit : MOST_SPLIT_BLOCKS);
}

// The log of the sum of chunks, each of which is sum * e^highest, in their order. In no set's file,
// of which some would round otherwise.
struct LogOfSums {
    double sum = 0;
    float highest = -INFINITY;

    void add(float of_chunk, float chunk);
    double value() const;
};

// Where value `i` of a column's `k` lies in packed weights.
inline size_t packed_at(const Kernels& kernels, bool int8, int k, int column, int i) {
    const int panel = kernels.panel, group = int8 ? kernels.group : 1;
    return (size_t)(column / panel) * k * panel + (size_t)(i / group) * panel * group +
           column % panel * group + i % group;
}
// The same of floats that are stored as `type`.
inline size_t packed_at(const Kernels& kernels, Half type, int k, int column, int i) {
    const int lanes = kernels.lanes, vector = column % kernels.panel / lanes;
    const bool paired = (vector | 1) * lanes < kernels.panel;  // of an odd number one is left
    if (type == Half::bfloat16 && paired)
        column += (vector & ~1) * lanes + column % lanes * 2 + vector % 2 - column % kernels.panel;
    return packed_at(kernels, false, k, column, i);
}

const Kernels& kernels();                        // the fastest that this machine runs
const Kernels* kernels_named(const char* name);  // null if unknown, or if they do not run here
const Kernels* const* all_kernels();             // built in, fastest first; ends with null

}  // namespace tfn
