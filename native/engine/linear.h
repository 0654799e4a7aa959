// A matrix product with packed weights: y = f(x W^T + b).
#pragma once
#include <string>
#include <vector>

#include "kernels/kernels.h"
#include "memory.h"
#include "tensors.h"
#include "threads.h"

namespace tfn {

// What packing needs: heads of `dim` values are padded to `padded`.
struct Heads {
    int count = 1, dim = 0, padded = 0;
    int at(int i) const { return i / dim * padded + i % dim; }  // where value i lies
    int size() const { return count * dim; }
    int width() const { return count * padded; }
};

struct Source {        // of some output columns
    std::string name;  // with ".weight" and ".bias" behind it
    bool bias;
};

// Whose rows a product's are. A value must not depend on how many there are, so that a set of
// instructions may have a product for each, but not one for many rows and one for few.
enum class Role {
    steps,    // of a decoder: often one at a time, and the same values whenever they are many
    beams,    // of a decoder that follows several hypotheses of each row
    sources,  // whole sources
};

class Linear {
public:
    Linear() = default;
    // Outputs and inputs that are not heads have `padded == dim == count of values`, one head.
    Linear(const Kernels& kernels, Tensors& tensors, const std::vector<Source>& sources,
           Heads outputs, Heads inputs);

    bool quantized() const { return scales_.size() > 0; }
    int inputs() const { return k_; }
    int outputs() const { return n_; }
    const float* bias() const { return bias_.data(); }
    const Packed& packed() const { return packed_; }
    int panels() const { return panels_; }

private:
    void pack(const Kernels& kernels, Tensors& all, const std::vector<Tensor>& tensors,
              Heads outputs, Heads inputs);
    void fill(const Kernels& kernels, Tensors& all, const std::vector<Tensor>& tensors,
              Heads outputs, Heads inputs);
    void pair_groups(const Kernels& kernels, Store& store, Team& team);
    bool pack_plain(const Kernels& kernels, const std::vector<Tensor>& tensors, int task);

    int k_ = 0, n_ = 0, panels_ = 0;
    View<float> weights_, scales_, bias_;
    View<uint16_t> halves_;
    View<int8_t> integers_;
    View<int32_t> sums_;
    View<uint8_t> largest_;  // of the values of each panel, without their signs
    View<uint16_t> order_;   // of each panel's groups, where a set pairs them
    Packed packed_;
};

// Values of rows as a product reads them: quantised if its weights are, or in parts.
class Quantized {
public:
    // Rows (M, k) with `ld` values between them, for int8 weights up to `largest`. Shared out among
    // the team if there are many.
    Input make(const Kernels& kernels, Team& team, const float* x, size_t ld, int rows, int k,
               int largest);

    // Floats of many rows: in parts where the set has those.
    Input make_floats(const Kernels& kernels, Team& team, const float* x, size_t ld, int rows,
                      int k);

    // As integers of two digits, those of a row one after the other; and what `Digits` says of
    // them.
    Input make_digits(const Kernels& kernels, Team& team, const float* x, size_t ld, int rows,
                      int k);
    const Digits& digits(int row) const { return digits_.data()[row]; }

private:
    size_t reserve(const Kernels& kernels, int rows, int padded);

    Buffer<char> values_;
    Buffer<Quantization> how_;
    Buffer<uint16_t> parts_;
    Buffer<Digits> digits_;
};

// Panels to tasks, so that a task is worth its claim and none is late for long. `times`: as many
// groups of rows have tasks of their own.
struct Chunks {
    int panels, each, count;
    Chunks(int panels, double work_of_panel, int threads, int times = 1);
    int first(int task) const { return task * each; }
    int last(int task) const { return first(task) + each < panels ? first(task) + each : panels; }
};

void run_linear(const Kernels& kernels, Team& team, const Linear& linear, Role role, const float* x,
                size_t ld, int rows, Quantized& quantized, Epilogue out);

}  // namespace tfn
