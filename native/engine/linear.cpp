#include "linear.h"

#include <algorithm>

#include "packing.h"

namespace tfn {
namespace {

// Without its sign. In bytes, which compilers put into vectors.
uint8_t largest_of(const int8_t* values, size_t count) {
    uint8_t largest = 0;
    for (size_t i = 0; i < count; i++) {
        const uint8_t size = (uint8_t)(values[i] < 0 ? -values[i] : values[i]);
        largest = size > largest ? size : largest;
    }
    return largest;
}

}  // namespace

Linear::Linear(const Kernels& kernels, Tensors& tensors, const std::vector<Source>& sources,
               Heads outputs, Heads inputs) {
    std::vector<Tensor> found;
    const int parts = (int)sources.size(), width = outputs.width();
    k_ = inputs.width();
    n_ = width * parts;
    panels_ = (n_ + kernels.panel - 1) / kernels.panel;
    std::vector<Tensor> biases;
    bool whole = true;
    for (const Source& source : sources) {
        found.push_back(tensors.take(source.name + ".weight", outputs.size(), inputs.size()));
        biases.push_back(source.bias ? tensors.take(source.name + ".bias", 1, outputs.size())
                                     : Tensor{});
        whole = whole && found.back().data && (!source.bias || biases.back().data);
    }
    if (!whole) return;  // noted
    bias_ = tensors.store.take<float>((size_t)panels_ * kernels.panel);
    for (int part = 0; part < parts && !tensors.store.filled(); part++)
        for (int i = 0; biases[part].data && i < outputs.size(); i++)
            bias_[part * width + outputs.at(i)] = biases[part].at(0, i);
    pack(kernels, tensors, found, outputs, inputs);
}

void Linear::pack(const Kernels& kernels, Tensors& all, const std::vector<Tensor>& tensors,
                  Heads outputs, Heads inputs) {
    // Of a group of which some are float32, all are: what int8 values stand for.
    const bool int8 = std::all_of(tensors.begin(), tensors.end(),
                                  [](const Tensor& tensor) { return tensor.int8; });
    const int k = int8 ? (int)round_up(k_, kernels.depth) : k_;
    const size_t padded = (size_t)panels_ * kernels.panel;
    Half type = Half::none;
    if (int8) {
        integers_ = all.store.take<int8_t>(padded * k);
        scales_ = all.store.take<float>(padded);
        sums_ = all.store.take<int32_t>(padded);
        largest_ = all.store.take<uint8_t>(panels_);
    } else if ((type = all.half_of(tensors)) != Half::none) {
        halves_ = all.store.take<uint16_t>(padded * k);
    } else {
        weights_ = all.store.take<float>(padded * k);
    }
    packed_ = {k, weights_.data(), integers_.data(), scales_.data(), sums_.data()};
    if (type != Half::none) packed_.floats = {halves_.data(), type};
    if (!all.store.filled()) fill(kernels, all, tensors, outputs, inputs);
    if (!int8) return;
    packed_.largest = *std::max_element(largest_.data(), largest_.data() + panels_);
    if (kernels.pair_groups && k <= MOST_PAIRED) pair_groups(kernels, all.store, all.team);
}

void Linear::pair_groups(const Kernels& kernels, Store& store, Team& team) {
    const int k = packed_.k, groups = k / PAIRED_GROUP;
    const size_t each = order_size(k), of_panel = (size_t)kernels.panel * k;
    order_ = store.take<uint16_t>(panels_ * each);
    packed_.order = order_.data();
    if (!store.filled())
        return team.run(panels_, 2.0 * panels_ * of_panel, [&](int panel, int) {
            kernels.pair_groups(integers_.data() + panel * of_panel, k, packed_.largest,
                                order_.data() + panel * each);
        });
    // A product reads and multiplies at places of a file.
    for (size_t panel = 0; panel < (size_t)panels_; panel++) {
        const uint16_t* order = order_.data() + panel * each;
        bool within = 2 * order[0] <= groups;
        for (int i = 1; i <= groups; i++) within = within && order[i] < groups;
        if (!within) store.refuse("has weights in an order of other places");
    }
}

void Linear::fill(const Kernels& kernels, Tensors& all, const std::vector<Tensor>& tensors,
                  Heads outputs, Heads inputs) {
    const bool int8 = quantized(),
               plain = outputs.padded == outputs.dim && inputs.padded == inputs.dim;
    const Half type = packed_.floats.type();
    const int k = packed_.k, width = outputs.width(), panel = kernels.panel;
    const auto pack_padded = [&](int task) {
        for (int column = task * panel; column < (task + 1) * panel; column++) {
            const int place = column % width;
            if (column >= n_ || place % outputs.padded >= outputs.dim) continue;  // padding
            const Tensor& tensor = tensors[column / width];
            const int row = place / outputs.padded * outputs.dim + place % outputs.padded;
            if (int8) scales_[column] = tensor.scales[row];
            for (int i = 0; i < inputs.size(); i++) {
                if (!int8) {
                    const size_t to = packed_at(kernels, type, k, column, inputs.at(i));
                    if (type == Half::none) weights_[to] = tensor.at(row, i);
                    else narrowed(type, tensor.at(row, i), &halves_[to]);
                    continue;
                }
                const size_t to = packed_at(kernels, int8, k, column, inputs.at(i));
                const size_t from = row * tensor.row_stride + i * tensor.column_stride;
                integers_[to] = static_cast<const int8_t*>(tensor.data)[from];
                sums_[column] += integers_[to];
            }
        }
    };
    const size_t of_panel = (size_t)panel * k;
    all.team.run(panels_, (double)panels_ * of_panel, [&](int task, int) {
        if (!plain || !pack_plain(kernels, tensors, task)) pack_padded(task);
        if (int8) largest_[task] = largest_of(integers_.data() + task * of_panel, of_panel);
    });
    for (const Tensor& tensor : tensors) tensor.release();
}

// A panel of rows that follow each other in one matrix.
bool Linear::pack_plain(const Kernels& kernels, const std::vector<Tensor>& tensors, int task) {
    const int panel = kernels.panel, first = task * panel, count = std::min(panel, n_ - first);
    const Tensor& tensor = tensors[first / tensors[0].rows];
    const size_t row = first % tensor.rows;
    if (row + count > tensor.rows) return false;
    const Lines lines{tensor.row_stride, tensor.column_stride, count, k_};
    const size_t to = packed_at(kernels, quantized(), packed_.k, first, 0);
    if (!quantized()) {
        if (tensor.int8) return false;
        const float* from = static_cast<const float*>(tensor.data) + row * tensor.row_stride;
        if (weights_.data()) {
            pack_panel(from, lines, panel, weights_.data() + to);
            return true;
        }
        const Half type = packed_.floats.type();
        std::vector<float> wide((size_t)panel * k_);
        pack_panel(from, lines, panel, wide.data());
        for (int column = 0; column < panel; column++) {
            uint16_t* halves = halves_.data() + to + packed_at(kernels, type, k_, column, 0);
            for (size_t i = column; i < wide.size(); i += panel, halves += panel)
                narrowed(type, wide[i], halves);
        }
        return true;
    }
    std::copy_n(tensor.scales + row, count, scales_.data() + first);
    const int8_t* from = static_cast<const int8_t*>(tensor.data);
    return pack_panel(from + row * tensor.row_stride, lines, panel, kernels.group,
                      integers_.data() + to, sums_.data() + first);
}

// Room for rows; gives how far apart they lie, in values.
size_t Quantized::reserve(const Kernels& kernels, int rows, int padded) {
    const size_t size = kernels.value_bytes;
    // Rows a power of two apart would share few places of the cache.
    const size_t ldq = round_up(padded * size, 64) / size + 64 / size;
    values_.reserve(rows * ldq * size);
    how_.reserve(rows);
    return ldq;
}

Input Quantized::make(const Kernels& kernels, Team& team, const float* x, size_t ld, int rows,
                      int k, int largest) {
    const int padded = (int)round_up(k, kernels.depth), size = kernels.value_bytes;
    const size_t ldq = reserve(kernels, rows, padded);
    char* values = values_.data();
    Quantization* how = how_.data();
    const int each = 4, tasks = (rows + each - 1) / each;
    team.run(tasks, 4.0 * rows * k, [&](int task, int) {
        for (int row = task * each; row < std::min(rows, task * each + each); row++)
            how[row] =
                kernels.quantize(x + row * ld, k, padded, largest, values + row * ldq * size);
    });
    return {nullptr, 0, values, ldq, how};
}

Input Quantized::make_digits(const Kernels& kernels, Team& team, const float* x, size_t ld,
                             int rows, int k) {
    const int padded = (int)round_up(k, kernels.depth);
    const size_t ldq = reserve(kernels, 2 * rows, padded);
    int8_t* values = reinterpret_cast<int8_t*>(values_.data());
    Quantization* how = how_.data();
    Digits* found = digits_.reserve(rows);
    team.run(rows, 4.0 * rows * k, [&](int row, int) {
        int8_t* of_row = values + 2 * row * ldq;
        found[row] = kernels.digits(x + row * ld, k, padded, of_row, of_row + ldq);
        how[row] = {found[row].scale, 0};
    });
    return {nullptr, 0, values, ldq, how};
}

Input Quantized::make_floats(const Kernels& kernels, Team& team, const float* x, size_t ld,
                             int rows, int k) {
    Input input{x, ld};
    if (!kernels.split) return input;
    input.ldp = parts_size(k);
    const int tasks = (rows + SPLIT_ROWS - 1) / SPLIT_ROWS;
    uint16_t* parts = parts_.reserve(tasks * input.ldp);
    team.run(tasks, 2.0 * rows * k, [&](int task, int) {
        const int row = task * SPLIT_ROWS;
        kernels.split(x + row * ld, ld, std::min(rows - row, SPLIT_ROWS), k,
                      parts + task * input.ldp);
    });
    input.parts = parts;
    return input;
}

Chunks::Chunks(int panels, double work_of_panel, int threads, int times) : panels(panels) {
    constexpr double LEAST = 30e3;  // multiply-adds of a task
    int most = threads == 1 ? 1 : std::max(1, 8 * threads / times);
    int wanted = (int)std::min<double>(most, panels * work_of_panel / LEAST);
    each = (panels + std::max(1, wanted) - 1) / std::max(1, wanted);
    if (each > 2) each = (each + 3) / 4 * 4;  // a single row takes panels four at a time
    count = (panels + each - 1) / each;
}

void run_linear(const Kernels& kernels, Team& team, const Linear& linear, Role role, const float* x,
                size_t ld, int rows, Quantized& quantized, Epilogue out) {
    const int k = linear.inputs();
    Input input{x, ld};
    if (linear.quantized())
        input = quantized.make(kernels, team, x, ld, rows, k, linear.packed().largest);
    else if (role != Role::steps) input = quantized.make_floats(kernels, team, x, ld, rows, k);
    out.bias = linear.bias();
    // A task with all rows and a few panels would read rows in parts again for each panel, from
    // beyond the second cache. Threads take tasks of the same rows after one another.
    const int most = input.parts && team.threads() > 1 ? split_rows_together(k) : rows;
    const int groups = std::max(1, (rows + most - 1) / most);
    const int each = groups > 1 ? (int)round_up((rows + groups - 1) / groups, SPLIT_BLOCK) : rows;
    const double work = (double)each * k * kernels.panel;
    const Chunks chunks(linear.panels(), work, team.threads(), groups);
    team.run(groups * chunks.count, (double)rows * k * kernels.panel * linear.panels(),
             [&](int task, int) {
                 const int from = task / chunks.count * each, part = task % chunks.count;
                 if (from >= rows) return;  // groups were rounded up
                 Input some = input;
                 Epilogue to = out;
                 if (from) {
                     some.f32 += from * ld;
                     some.parts += from / SPLIT_ROWS * input.ldp;
                     to.y += from * out.ld;
                 }
                 kernels.linear(linear.packed(), some, std::min(each, rows - from),
                                chunks.first(part), chunks.last(part), to);
             });
}

}  // namespace tfn
