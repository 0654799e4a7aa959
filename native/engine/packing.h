// Rows of a matrix become columns of a panel, in the order in which the matrix lies in memory.
#pragma once
#include <cstddef>
#include <cstdint>

namespace tfn {

// Rows of a matrix of k values each; strides in values.
struct Lines {
    size_t row_stride, column_stride;
    int rows, k;
};

// Into a panel of `panel` columns, of which as many as there are rows are written: see "kernels.h".
void pack_panel(const float* from, const Lines& lines, int panel, float* to);
// The same of integers, `group` of a column together, and the sum of each column. Returns whether
// there is a form for this group.
bool pack_panel(const int8_t* from, const Lines& lines, int panel, int group, int8_t* to,
                int32_t* sums);

// A row as integers times a scale; norms of the row and of what the integers leave out, rounded up.
struct Scaled {
    float scale, error, length;
    int32_t sum;
};
Scaled scale_row(const float* row, int k, int8_t* integers);
// The same with a scale that is given, and what values are multiplied with in its place.
Scaled round_row(const float* row, int k, float scale, float inverse, int8_t* integers);

}  // namespace tfn
