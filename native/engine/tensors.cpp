#include "tensors.h"

namespace tfn {

float Tensor::at(size_t row, size_t column) const {
    size_t place = row * row_stride + column * column_stride;
    if (int8) return static_cast<const int8_t*>(data)[place] * scales[row];
    return static_cast<const float*>(data)[place];
}

void Tensor::copy_row(size_t row, float* to) const {
    if (flat()) {
        std::memcpy(to, static_cast<const float*>(data) + row * row_stride, columns * sizeof(float));
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

View<float> Tensors::vector(const std::string& name, size_t size, size_t padded) {
    Tensor tensor = take(name, 1, size);
    View<float> values = store.take<float>(padded);
    if (tensor.data && !store.filled()) tensor.copy_row(0, values.data());
    return values;
}

}  // namespace tfn
