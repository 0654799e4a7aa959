#include "tensors.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>

namespace tfn {
namespace {

// Whether weights may be kept in 16 bits; "float32" keeps them all in that, to compare.
bool may_be_halves() {
    const char* given = std::getenv("TFEXPORT_NATIVE_WEIGHTS");
    const std::string wanted = given && *given ? given : "stored";
    if (wanted != "stored" && wanted != "float32")
        throw Error("TFEXPORT_NATIVE_WEIGHTS is \"" + wanted + "\"; expected stored or float32");
    return wanted == "stored";
}

bool line_fits(Half type, const float* values, size_t count, size_t stride) {
    uint16_t half;
    for (size_t i = 0; i < count; i++)
        if (!narrowed(type, values[i * stride], &half)) return false;
    return true;
}

// Whether all values of a matrix fit; in the order in which they lie.
bool fits(Half type, const Tensor& matrix, Team& team) {
    const float* values = static_cast<const float*>(matrix.data);
    const bool by_rows = matrix.column_stride <= matrix.row_stride;
    const size_t lines = by_rows ? matrix.rows : matrix.columns;
    const size_t count = by_rows ? matrix.columns : matrix.rows;
    const size_t apart = by_rows ? matrix.row_stride : matrix.column_stride;
    const size_t stride = by_rows ? matrix.column_stride : matrix.row_stride;
    if (!line_fits(type, values, count, stride)) return false;  // as a rule the first ones tell
    constexpr size_t EACH = 64;
    std::atomic<bool> all{true};
    team.run((int)((lines + EACH - 1) / EACH), (double)lines * count, [&](int task, int) {
        const size_t first = task * EACH, last = std::min(lines, first + EACH);
        for (size_t line = first; line < last && all; line++)
            if (!line_fits(type, values + line * apart, count, stride)) all = false;
    });
    return all;
}

}  // namespace

float Tensor::at(size_t row, size_t column) const {
    size_t place = row * row_stride + column * column_stride;
    if (int8) return static_cast<const int8_t*>(data)[place] * scales[row];
    return static_cast<const float*>(data)[place];
}

void Tensor::copy_row(size_t row, float* to) const {
    if (flat()) {
        std::memcpy(to, static_cast<const float*>(data) + row * row_stride,
                    columns * sizeof(float));
        return;
    }
    for (size_t i = 0; i < columns; i++) to[i] = at(row, i);
}

void Tensor::release() const {
    if (!mapped || !data) return;
    const size_t values = (rows - 1) * row_stride + (columns - 1) * column_stride + 1;
    system::give_back(data, values * (int8 ? 1 : sizeof(float)));
}

Tensor Tensors::take(const std::string& name, size_t rows, size_t columns) {
    auto shape = [](size_t a, size_t b) {
        return "(" + std::to_string(a) + ", " + std::to_string(b) + ")";
    };
    auto found = all_.find(name);
    if (found == all_.end()) {
        problems_.add("no tensor '" + name + "' " + shape(rows, columns));
        return {};
    }
    const Tensor& tensor = found->second;
    if (tensor.rows != rows || tensor.columns != columns) {
        problems_.add("'" + name + "' is " + shape(tensor.rows, tensor.columns) + "; expected " +
                      shape(rows, columns));
        return {};
    }
    return tensor;
}

Half Tensors::half_of(const std::vector<Tensor>& matrices) {
    View<uint32_t> type = store.take<uint32_t>(1);
    const bool any = !store.filled() && may_be_halves();
    auto fit = [&](Half half) {
        return std::all_of(matrices.begin(), matrices.end(), [&](const Tensor& matrix) {
            return !matrix.int8 && fits(half, matrix, team);
        });
    };
    if (any && fit(Half::bfloat16)) type[0] = (uint32_t)Half::bfloat16;
    else if (any && fit(Half::float16)) type[0] = (uint32_t)Half::float16;
    if (type[0] > MOST_HALF) store.refuse("has weights of type " + std::to_string(type[0]));
    return (Half)type[0];
}

View<float> Tensors::vector(const std::string& name, size_t size, size_t padded) {
    Tensor tensor = take(name, 1, size);
    View<float> values = store.take<float>(padded);
    if (tensor.data && !store.filled()) tensor.copy_row(0, values.data());
    return values;
}

}  // namespace tfn
