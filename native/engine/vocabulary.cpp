#include "vocabulary.h"

#include <algorithm>
#include <cmath>

#include "packing.h"

namespace tfn {
namespace {

constexpr int ROWS = 64;  // screened at a time
constexpr int ROOM = 512;  // for candidates of a row and a thread; if they are more, all are computed

}  // namespace

Vocabulary::Vocabulary(const Kernels& kernels, Tensors& tensors, const Config& config)
    : size_(config.target_vocab_size), d_(config.d_model) {
    panels_ = (size_ + kernels.panel - 1) / kernels.panel;
    const size_t padded = (size_t)panels_ * kernels.panel;
    Store& store = tensors.store;
    if (config.output_bias) bias_ = tensors.vector("output_proj.bias", size_, padded);
    else bias_ = store.take<float>(padded);
    allowed_ = store.take<float>(padded);
    if (!store.filled()) {
        std::copy(bias_.data(), bias_.data() + size_, allowed_.data());
        for (int id : config.suppress_tokens) allowed_[id] += SUPPRESSED;
        // Columns behind the last are never chosen.
        std::fill(allowed_.data() + size_, allowed_.data() + padded, -INFINITY);
    }
    // Of what a file holds this alone decides about places in memory.
    for (size_t i = size_; i < padded; i++)
        if (allowed_[i] != -INFINITY) store.refuse("has tokens beyond the vocabulary");
    Tensor weight = tensors.take("output_proj.weight", size_, d_);
    if (!weight.data) return;
    if (weight.int8) {
        quantized_ = Linear(kernels, tensors, {{"output_proj", false}}, {1, size_, size_},
                            {1, d_, d_});
        packed_ = quantized_.packed();
        return;
    }
    keep_rows(tensors, weight);
    make_screen(kernels, tensors, weight);
    if (!store.filled()) weight.release();
}

// Rows as they lie in the caller's memory, or in the store: in 16 bits, or because they lie apart.
void Vocabulary::keep_rows(Tensors& tensors, const Tensor& weight) {
    Store& store = tensors.store;
    const size_t size = (size_t)size_ * d_;
    stride_ = d_;
    const Half type = tensors.half_of({weight});
    if (type != Half::none) {
        halves_ = store.take<uint16_t>(size);
        rows_ = {halves_.data(), type};
        tensors.team.run(store.filled() ? 0 : size_, (double)size, [&](int row, int) {
            for (int i = 0; i < d_; i++)
                narrowed(type, weight.at(row, i), &halves_[(size_t)row * d_ + i]);
        });
    } else if (weight.column_stride != 1) {
        own_ = store.take<float>(size);
        for (int i = 0; i < size_ && !store.filled(); i++)
            weight.copy_row(i, own_.data() + (size_t)i * d_);
        rows_ = own_.data();
    } else {
        rows_ = static_cast<const float*>(weight.data);
        stride_ = weight.row_stride;
    }
}

void Vocabulary::make_screen(const Kernels& kernels, Tensors& tensors, const Tensor& weight) {
    const int panel = kernels.panel, k = (int)round_up(d_, kernels.depth);
    const size_t padded = (size_t)panels_ * panel;
    integers_ = tensors.store.take<int8_t>(padded * k);
    sums_ = tensors.store.take<int32_t>(padded);
    scales_ = tensors.store.take<float>(padded);
    errors_ = tensors.store.take<float>(padded);
    lengths_ = tensors.store.take<float>(padded);
    packed_ = {k, nullptr, integers_.data(), scales_.data(), sums_.data()};
    if (tensors.store.filled()) return;
    tensors.team.run(panels_, (double)padded * k, [&](int task, int) {
        std::vector<float> row(d_);
        for (int column = task * panel; column < std::min(size_, (task + 1) * panel); column++) {
            weight.copy_row(column, row.data());
            fill_screen(kernels, row.data(), column, k);
        }
    });
}

void Vocabulary::fill_screen(const Kernels& kernels, const float* row, int column, int k) {
    std::vector<int8_t> values(k);  // 0 behind the row's own
    const Scaled scaled = scale_row(row, d_, values.data());
    for (int i = 0; i < k; i += kernels.group)
        std::copy_n(values.data() + i, kernels.group,
                    integers_.data() + packed_at(kernels, true, k, column, i));
    sums_[column] = scaled.sum;
    scales_[column] = scaled.scale;
    errors_[column] = scaled.error;
    lengths_[column] = scaled.length;
}

void Vocabulary::logits(Workspace& w, const float* x, int rows, float* out, size_t ld) const {
    const size_t from = width(d_);
    if (!rows_) {
        Epilogue end{out, ld, bias_.data(), size_};
        Input input = w.quantized.make(w.kernels, w.team, x, from, rows, d_);
        const double work = (double)rows * d_ * w.kernels.panel;
        const Chunks chunks(panels_, work, w.team.threads());
        w.team.run(chunks.count, work * panels_, [&](int task, int) {
            w.kernels.linear(packed_, input, rows, chunks.first(task), chunks.last(task), end);
        });
        return;
    }
    // A chunk of columns stays in the cache while all rows are multiplied with it.
    constexpr int WHOLE = 12;  // columns that every instruction set takes in whole blocks
    const int each = std::max(1, (1 << 16) / d_ / WHOLE) * WHOLE, tasks = (size_ + each - 1) / each;
    w.team.run(tasks, (double)rows * d_ * size_, [&](int task, int) {
        const int first = task * each, count = std::min(each, size_ - first);
        w.kernels.dots({x, from, rows, rows_ + first * stride_, stride_, count, d_,
                        bias_.data() + first, out + first, ld});
    });
}

void Vocabulary::logits_of(Workspace& w, const float* x, int rows, const int32_t* columns,
                           int count, float* out, size_t ld) const {
    // Columns lie anywhere, so that each is multiplied by itself; a task is some of them.
    const int panel = w.kernels.panel;
    const double work = (double)rows * d_ * (rows_ ? 1 : panel);
    const int each = std::max(1, (int)(30e3 / std::max(1.0, work))), tasks = (count + each - 1) / each;
    if (rows_) {
        w.team.run(tasks, work * count, [&](int task, int) {
            for (int i = task * each; i < std::min(count, (task + 1) * each); i++)
                w.kernels.dots({x, width(d_), rows, rows_ + columns[i] * stride_, stride_, 1, d_,
                                bias_.data() + columns[i], out + i, ld});
        });
        return;
    }
    const Input input = w.quantized.make(w.kernels, w.team, x, width(d_), rows, d_);
    float* room = w.bounds.reserve((size_t)w.team.threads() * rows * panel);
    w.team.run(tasks, work * count, [&](int task, int thread) {
        float* found = room + (size_t)thread * rows * panel;
        for (int i = task * each; i < std::min(count, (task + 1) * each); i++) {
            const size_t first = columns[i] / panel * panel;
            const Packed one{packed_.k, nullptr, packed_.int8 + first * packed_.k,
                             packed_.scales + first, packed_.sums + first};
            w.kernels.linear(one, input, rows, 0, 1,
                             {found, (size_t)panel, bias_.data() + first, panel});
            for (int row = 0; row < rows; row++)
                out[row * ld + i] = found[(size_t)row * panel + columns[i] - first];
        }
    });
}

void Vocabulary::best(Workspace& w, const float* x, int rows, int32_t* out) const {
    for (int row = 0; row < rows; row += ROWS)
        screen(w, x + row * width(d_), std::min(ROWS, rows - row), out + row);
}

void Vocabulary::screen(Workspace& w, const float* x, int rows, int32_t* out) const {
    const int threads = w.team.threads();
    const Input input = w.quantized.make(w.kernels, w.team, x, width(d_), rows, d_);
    std::vector<Screen> screens((size_t)threads * rows);
    w.candidates.reserve(screens.size() * ROOM);
    w.bounds.reserve(screens.size() * ROOM);
    for (size_t i = 0; i < screens.size(); i++) {
        screens[i].ids = w.candidates.data() + i * ROOM;
        screens[i].upper = w.bounds.data() + i * ROOM;
        screens[i].room = ROOM;
    }
    const float u = 0x1p-24f, g = (d_ / w.kernels.lanes + 2 * w.kernels.lanes) * u * 1.01f;
    w.team.run(rows_ ? rows : 0, 8.0 * rows * d_, [&](int row, int) {
        const char* values = static_cast<const char*>(input.quantized);
        float length, error;
        w.kernels.quantization_error(x + row * width(d_),
                                     values + row * input.ldq * w.kernels.value_bytes,
                                     input.rows[row], d_, &length, &error);
        error += g * (length + error) + 4 * u * length;
        for (int thread = 0; thread < threads; thread++) {
            screens[(size_t)thread * rows + row].length = length;
            screens[(size_t)thread * rows + row].error = error;
        }
    });
    const ScreenColumns columns{allowed_.data(), errors_.data(), lengths_.data(), !rows_};
    const double work = (double)rows * d_ * w.kernels.panel;
    const Chunks chunks(panels_, work, threads);
    w.team.run(chunks.count, work * panels_, [&](int task, int thread) {
        w.kernels.screen(packed_, input, rows, chunks.first(task), chunks.last(task), columns,
                         screens.data() + (size_t)thread * rows);
    });
    w.team.run(rows, 16.0 * rows * d_, [&](int row, int) {
        out[row] = pick(w, x + row * width(d_), row, rows, screens.data());
    });
}

int32_t Vocabulary::pick(Workspace& w, const float* x, int row, int rows,
                         const Screen* screens) const {
    float low = -INFINITY, most = -INFINITY;
    int32_t found = 0;
    for (int thread = 0; thread < w.team.threads(); thread++) {
        const Screen& s = screens[thread * rows + row];
        if (s.full) return best_of_all(w, x);
        low = std::max(low, s.best);
    }
    for (int thread = 0; thread < w.team.threads(); thread++) {
        const Screen& s = screens[thread * rows + row];
        for (int i = 0; i < s.count; i++) {
            if (!(s.upper[i] >= low)) continue;
            float value = s.upper[i];
            if (rows_)
                w.kernels.dots({x, 0, 1, rows_ + s.ids[i] * stride_, stride_, 1, d_,
                                allowed_.data() + s.ids[i], &value, 0});
            if (value > most || (value == most && s.ids[i] < found)) {
                most = value;
                found = s.ids[i];
            }
        }
    }
    return found;
}

int32_t Vocabulary::best_of_all(const Workspace& w, const float* x) const {
    constexpr int SOME = 256;
    float some[SOME], most = -INFINITY;
    int32_t found = 0;
    for (int first = 0; first < size_; first += SOME) {
        const int count = std::min(SOME, size_ - first);
        w.kernels.dots({x, 0, 1, rows_ + first * stride_, stride_, count, d_,
                        allowed_.data() + first, some, 0});
        const int best = w.kernels.argmax(some, count);
        if (!(some[best] > most)) continue;
        most = some[best];
        found = first + best;
    }
    return found;
}

}  // namespace tfn
