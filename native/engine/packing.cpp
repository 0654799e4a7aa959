#include "packing.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace tfn {
namespace {

constexpr int BLOCK = 64;  // values of a row at a time, so that the panel's part stays in the cache

// Lines are copied: bytes that are stored may be a part of what a reference leads to, and compilers
// then make no vectors of the loops.
template <class T, int GROUP>
void pack(const T* from, const Lines lines, int panel, T* to) {
    const size_t row = lines.row_stride, column = lines.column_stride;
    const int whole = lines.k / GROUP * GROUP, rows = lines.rows;
    for (int first = 0; first < whole; first += BLOCK) {
        const int last = std::min(whole, first + BLOCK);
        if (row == 1) {  // all rows' value i lie in one piece
            for (int i = first; i < last; i += GROUP) {
                const T* values = from + i * column;
                T* group = to + (size_t)i * panel;
                for (int n = 0; n < rows; n++)
                    for (int j = 0; j < GROUP; j++) group[n * GROUP + j] = values[j * column + n];
            }
        } else if (column == 1) {
            for (int n = 0; n < rows; n++)
                for (int i = first; i < last; i += GROUP)
                    std::memcpy(to + (size_t)i * panel + n * GROUP, from + n * row + i,
                                GROUP * sizeof(T));
        } else {
            for (int n = 0; n < rows; n++)
                for (int i = first; i < last; i++)
                    to[(size_t)(i / GROUP) * GROUP * panel + n * GROUP + i % GROUP] =
                        from[n * row + i * column];
        }
    }
    for (int i = whole; i < lines.k; i++)
        for (int n = 0; n < rows; n++)
            to[(size_t)whole * panel + n * GROUP + i % GROUP] = from[n * row + i * column];
}

void add_up(const int8_t* from, const Lines lines, int32_t* __restrict sums) {
    const int rows = lines.rows;
    std::fill(sums, sums + rows, 0);
    if (lines.row_stride == 1) {
        for (int i = 0; i < lines.k; i++) {
            const int8_t* __restrict values = from + i * lines.column_stride;
            for (int n = 0; n < rows; n++) sums[n] += values[n];
        }
        return;
    }
    for (int n = 0; n < rows; n++) {
        const int8_t* row = from + n * lines.row_stride;
        int32_t sum = 0;
        if (lines.column_stride == 1)
            for (int i = 0; i < lines.k; i++) sum += row[i];
        else
            for (int i = 0; i < lines.k; i++) sum += row[i * lines.column_stride];
        sums[n] = sum;
    }
}

}  // namespace

void pack_panel(const float* from, const Lines& lines, int panel, float* to) {
    pack<float, 1>(from, lines, panel, to);
}

bool pack_panel(const int8_t* from, const Lines& lines, int panel, int group, int8_t* to,
                int32_t* sums) {
    if (group == 4) pack<int8_t, 4>(from, lines, panel, to);
    else if (group == 2) pack<int8_t, 2>(from, lines, panel, to);
    else return false;
    add_up(from, lines, sums);
    return true;
}

Scaled scale_row(const float* row, int k, int8_t* integers) {
    constexpr int LANES = 8;  // sums side by side, which the compiler makes vectors of
    float mosts[LANES] = {};
    const int whole = k / LANES * LANES;
    for (int i = 0; i < whole; i += LANES)
        for (int j = 0; j < LANES; j++) {
            const float size = std::fabs(row[i + j]);
            mosts[j] = size > mosts[j] ? size : mosts[j];
        }
    float most = 1e-30f;
    for (float each : mosts) most = std::max(most, each);
    for (int i = whole; i < k; i++) most = std::max(most, std::fabs(row[i]));
    return round_row(row, k, most / 127, 127 / most, integers);
}

Scaled round_row(const float* row, int k, float scale, float inverse, int8_t* integers) {
    constexpr int LANES = 8;
    const int whole = k / LANES * LANES;
    Scaled found{scale, 0, 0, 0};
    double errors[LANES] = {}, lengths[LANES] = {};
    auto take = [&](int i, int j) {
        // Added to it, a number loses what is behind its point, rounded to the nearest.
        constexpr float POINT = 12582912.0f;  // 1.5 * 2^23
        const float rounded = row[i] * inverse + POINT - POINT;
        const float value = !(rounded > -127) ? -127 : rounded > 127 ? 127 : rounded;
        integers[i] = (int8_t)(int)value;
        const double off = row[i] - value * (double)found.scale;
        errors[j] += off * off;
        lengths[j] += (double)row[i] * row[i];
    };
    for (int i = 0; i < whole; i += LANES)
        for (int j = 0; j < LANES; j++) take(i + j, j);
    for (int i = whole; i < k; i++) take(i, 0);
    double error = 0, length = 0;
    for (int j = 0; j < LANES; j++) error += errors[j], length += lengths[j];
    for (int i = 0; i < k; i++) found.sum += integers[i];
    found.error = (float)(std::sqrt(error) * 1.000001);
    found.length = (float)(std::sqrt(length) * 1.000001);
    return found;
}

}  // namespace tfn
