// Weights by the names of their parameters, in the caller's memory, and what loading needs besides.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "kernels/halves.h"
#include "memory.h"
#include "problems.h"
#include "store.h"
#include "threads.h"

namespace tfn {

// A matrix (rows, columns) of float32, or of int8 with a scale for each row. Strides in values.
struct Tensor {
    const void* data = nullptr;
    const float* scales = nullptr;
    size_t rows = 0, columns = 0, row_stride = 0, column_stride = 0;
    bool int8 = false;
    bool mapped = false;  // a file, to which nobody writes

    bool flat() const { return !int8 && column_stride == 1; }  // rows as float32 in one piece
    float at(size_t row, size_t column) const;
    void copy_row(size_t row, float* to) const;
    // Gives back the pages of a map; they are read again if they are needed.
    void release() const;
};

class Tensors {
public:
    Tensors(Store& store, Team& team) : store(store), team(team) {}

    Store& store;  // for what is made of them
    Team& team;    // that makes it

    void add(const std::string& name, const Tensor& tensor) { all_[name] = tensor; }
    // The tensor of this name and shape. If there is none it is noted, and one without data given.
    Tensor take(const std::string& name, size_t rows, size_t columns);
    // The type in which the store keeps these matrices: 16 bits that give back every value of all of
    // them, or float32. A file says which its own are.
    Half half_of(const std::vector<Tensor>& matrices);
    // A vector of so many float32 values in the store, padded with zeros to `padded`.
    View<float> vector(const std::string& name, size_t size, size_t padded);
    // Raise what was noted.
    void check() const { problems_.raise(); }
    void problem(const std::string& text) { problems_.add(text); }

private:
    std::map<std::string, Tensor> all_;
    Problems problems_;
};

}  // namespace tfn
