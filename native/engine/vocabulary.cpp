#include "vocabulary.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "packing.h"

namespace tfn {
namespace {

constexpr int ROWS = 64;  // screened at a time
constexpr int ROOM =
    512;  // for candidates of a row and a thread; if they are more, all are computed

// Columns that are computed beyond those that are wanted, so that the last of them is clearly
// worse.
constexpr int BEYOND = 12;
constexpr int MOST_COMPUTED = 64;    // of a row
constexpr double MOST_BOUND = 0.03;  // of a logit, and so of the log of the sum
constexpr int FEWEST_COLUMNS = 512;  // for which integers have two digits
// Of all columns: |w|, |w - w' - s'|, |s'| and |w'| + |s'|.
enum { LARGEST_LENGTH, LARGEST_ERROR, LARGEST_SECOND, LARGEST_INTEGERS, LARGEST_COUNT };

struct Best {
    float value = -INFINITY;
    int32_t column = 0;
    void add(float other, int32_t at) {  // on a tie the lower one
        if (!(other > value || (other == value && at < column))) return;
        value = other;
        column = at;
    }
};

// The best of the rankings that threads have made of a row, which lie `apart`.
void merge(const Ranking* rankings, size_t apart, int threads, float* values, int32_t* ids) {
    std::vector<int> taken(threads);
    for (int i = 0; i < rankings->room; i++) {
        values[i] = -INFINITY;
        ids[i] = 0;
        int best = -1;
        for (int thread = 0; thread < threads; thread++) {
            const Ranking& r = rankings[thread * apart];
            const int at = taken[thread];
            if (at == r.count) continue;
            if (best >= 0 &&
                (r.values[at] < values[i] || (r.values[at] == values[i] && r.ids[at] > ids[i])))
                continue;
            best = thread;
            values[i] = r.values[at];
            ids[i] = r.ids[at];
        }
        if (best >= 0) taken[best]++;
    }
}

}  // namespace

void LogOfSums::add(float of_chunk, float chunk) {
    if (!(of_chunk > -INFINITY)) return;
    if (of_chunk > highest) {
        sum = sum * std::exp((double)highest - of_chunk) + chunk;
        highest = of_chunk;
    } else {
        sum += chunk * std::exp((double)of_chunk - highest);
    }
}

double LogOfSums::value() const { return sum > 0 ? highest + std::log(sum) : -INFINITY; }

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
        quantized_ =
            Linear(kernels, tensors, {{"output_proj", false}}, {1, size_, size_}, {1, d_, d_});
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
    const bool two = kernels.digits && size_ >= FEWEST_COLUMNS;
    if (two) {
        seconds_ = tensors.store.take<int8_t>(padded * k);
        largest_ = tensors.store.take<float>(LARGEST_COUNT);
    }
    if (tensors.store.filled()) return;
    std::vector<float> largest((size_t)panels_ * LARGEST_COUNT);
    tensors.team.run(panels_, (double)padded * k, [&](int task, int) {
        std::vector<float> row(d_);
        for (int column = task * panel; column < std::min(size_, (task + 1) * panel); column++) {
            weight.copy_row(column, row.data());
            fill_screen(kernels, row.data(), column, k, &largest[task * LARGEST_COUNT]);
        }
    });
    for (size_t i = 0; two && i < largest.size(); i++)
        largest_[i % LARGEST_COUNT] = std::max(largest_[i % LARGEST_COUNT], largest[i]);
}

// Changes `row` where there are second digits. `largest`: of the columns so far.
void Vocabulary::fill_screen(const Kernels& kernels, float* row, int column, int k,
                             float* largest) {
    std::vector<int8_t> values(k);  // 0 behind the row's own
    const int group = kernels.group, apart = kernels.panel * group;
    const size_t place = packed_at(kernels, true, k, column, 0);
    const auto pack = [&](const View<int8_t>& all) {
        int8_t* to = all.data() + place;
        if (group == 4)  // one move each
            for (int i = 0; i < k; i += 4, to += apart) std::memcpy(to, values.data() + i, 4);
        else
            for (int i = 0; i < k; i += group, to += apart)
                std::copy_n(values.data() + i, group, to);
    };
    const Scaled scaled = scale_row(row, d_, values.data());
    pack(integers_);
    sums_[column] = scaled.sum;
    scales_[column] = scaled.scale;
    errors_[column] = scaled.error;
    lengths_[column] = scaled.length;
    if (!seconds_.data()) return;
    for (int i = 0; i < d_; i++) row[i] = (float)(row[i] - values[i] * (double)scaled.scale);
    const Scaled rest =
        round_row(row, d_, scaled.scale / DIGIT, DIGIT / scaled.scale, values.data());
    pack(seconds_);
    const float second = rest.length + rest.error;  // or less
    const float found[] = {scaled.length, rest.error + 0x1p-23f * rest.length, second,
                           scaled.length + scaled.error + second};
    for (int i = 0; i < LARGEST_COUNT; i++) largest[i] = std::max(largest[i], found[i]);
}

// use(first panel, behind the last, thread), for all panels, whose columns rise in each thread. A
// chunk of columns is of one task.
template <class Use>
void Vocabulary::share(Workspace& w, int rows, Use&& use) const {
    const int of_chunk = CHUNK / w.kernels.panel;
    const int each = std::max(1, panels_ / of_chunk / (32 * w.team.threads())) * of_chunk;
    w.team.run((panels_ + each - 1) / each, (double)rows * d_ * w.kernels.panel * panels_,
               [&](int task, int thread) {
                   use(task * each, std::min(panels_, (task + 1) * each), thread);
               });
}

Packed Vocabulary::weights() const {
    if (!rows_) return packed_;
    Packed own{d_};
    own.table = {rows_, stride_, nullptr, size_};
    return own;
}

Input Vocabulary::input(Workspace& w, const float* x, int rows) const {
    if (!rows_) return w.quantized.make(w.kernels, w.team, x, width(d_), rows, d_, packed_.largest);
    const int lanes = w.kernels.lanes, vectors = (rows + lanes - 1) / lanes;
    float* turned = w.turned.reserve((size_t)vectors * lanes * d_);
    w.team.run(vectors, 4.0 * rows * d_, [&](int i, int) {
        w.kernels.turn(x + i * lanes * width(d_), width(d_), std::min(lanes, rows - i * lanes), d_,
                       turned + (size_t)i * lanes * d_);
    });
    Input input;
    input.turned = turned;
    return input;
}

void Vocabulary::logits(Workspace& w, const float* x, int rows, float* out, size_t ld) const {
    const Input given = input(w, x, rows);
    const Packed own = weights();
    share(w, rows, [&](int first, int last, int) {
        w.kernels.linear(own, given, rows, first, last, {out, ld, bias_.data(), size_});
    });
}

void Vocabulary::logits_of(Workspace& w, const float* x, int rows, const int32_t* columns,
                           int count, float* out, size_t ld) const {
    // Columns of a table lie anywhere; of int8 each is multiplied with its panel.
    const int panel = w.kernels.panel, each = rows_ ? panel : 1, tasks = (count + each - 1) / each;
    const Input given = input(w, x, rows);
    float* room = w.bounds.reserve((size_t)w.team.threads() * rows * panel);
    w.team.run(tasks, (double)rows * d_ * panel * tasks, [&](int task, int thread) {
        const int32_t* own = columns + task * each;
        if (rows_) {
            some_logits(w.kernels, given, rows,
                        {rows_, stride_, own, std::min(each, count - task * each)}, bias_.data(),
                        out + task * each, ld);
            return;
        }
        float* found = room + (size_t)thread * rows * panel;
        const size_t first = *own / panel * panel;
        const Packed one{packed_.k,
                         {},
                         packed_.int8 + first * packed_.k,
                         packed_.scales + first,
                         packed_.sums + first,
                         packed_.largest};
        w.kernels.linear(one, given, rows, 0, 1,
                         {found, (size_t)panel, bias_.data() + first, panel});
        for (int row = 0; row < rows; row++)
            out[row * ld + task] = found[(size_t)row * panel + *own - first];
    });
}

// Of not more columns than a panel has.
void Vocabulary::some_logits(const Kernels& kernels, const Input& input, int rows,
                             const Table& columns, const float* bias, float* out, size_t ld) const {
    float of_columns[MOST_PANEL] = {};
    for (int i = 0; i < columns.count; i++) of_columns[i] = bias[columns.columns[i]];
    Packed own{d_};
    own.table = columns;
    kernels.linear(own, input, rows, 0, 1, {out, ld, of_columns, columns.count});
}

bool Vocabulary::ranks_by_integers(int count) const {
    return seconds_.data() && count + BEYOND <= MOST_COMPUTED;
}

void Vocabulary::rank(Workspace& w, const float* x, int rows, const Ranked& ranked) const {
    if (ranks_by_integers(ranked.count)) rank_integers(w, x, rows, ranked);
    else rank_floats(w, x, rows, ranked);
}

void Vocabulary::rank_floats(Workspace& w, const float* x, int rows, const Ranked& ranked) const {
    rank_all(w, weights(), input(w, x, rows), rows, ranked);
}

void Vocabulary::rank_integers(Workspace& w, const float* x, int rows, const Ranked& ranked) const {
    const size_t wanted = ranked.count, found = wanted + BEYOND, ld = width(d_);
    std::vector<float> values(rows * found);
    std::vector<int32_t> ids(values.size());
    Packed own = packed_;
    own.rest = seconds_.data();
    const Input given = w.quantized.make_digits(w.kernels, w.team, x, ld, rows, d_);
    rank_all(w, own, given, rows,
             {(int)found, ranked.bias, values.data(), ids.data(), ranked.log_sums});
    const size_t turned = (size_t)d_ * w.kernels.lanes;  // a row
    float* room = w.turned.reserve(w.team.threads() * turned);
    std::vector<char> settled(rows);
    const auto of_row = [&](const Ranked& all, size_t row, size_t each) {
        return Ranked{all.count, all.bias, all.values + row * each, all.ids + row * each,
                      all.log_sums + row};
    };
    w.team.run(rows, 32.0 * rows * d_ * found, [&](int row, int thread) {
        const Ranked candidates{(int)found, ranked.bias, &values[row * found], &ids[row * found]};
        settled[row] = settle(w.kernels, x + row * ld, w.quantized.digits(row), candidates,
                              of_row(ranked, row, wanted), room + thread * turned);
    });
    for (int row = 0; row < rows; row++)
        if (!settled[row]) rank_floats(w, x + row * ld, 1, of_row(ranked, row, wanted));
}

// The best of a row among the columns that were found by integers. Whether they are known to be.
bool Vocabulary::settle(const Kernels& kernels, const float* x, const Digits& digits,
                        const Ranked& found, const Ranked& ranked, float* room) const {
    const float* bias = ranked.bias ? ranked.bias : bias_.data();
    const double least = found.values[found.count - 1];
    if (!std::isfinite(least) || !std::isfinite(*ranked.log_sums)) return false;
    float logits[MOST_COMPUTED];
    int order[MOST_COMPUTED];
    Input turned;
    turned.turned = room;
    kernels.turn(x, 0, 1, d_, room);
    for (int i = 0; i < found.count; i += kernels.panel) {
        const int count = std::min(kernels.panel, found.count - i);
        some_logits(kernels, turned, 1, {rows_, stride_, found.ids + i, count}, bias, logits + i,
                    count);
    }
    double change = 0;
    for (int i = 0; i < found.count; i++) {
        if (!std::isfinite(logits[i])) return false;
        order[i] = i;
        change +=
            std::exp(logits[i] - *ranked.log_sums) - std::exp(found.values[i] - *ranked.log_sums);
    }
    std::sort(order, order + found.count, [&](int a, int b) {
        return logits[a] != logits[b] ? logits[a] > logits[b] : found.ids[a] < found.ids[b];
    });
    const double u = 0x1p-24, g = (d_ + 2) * u * 1.01, length = digits.length;
    const double error = digits.error + 6 * u * length;  // and how the rest was rounded
    const double bound = (error + g * (length + error)) * largest_[LARGEST_LENGTH] +
                         length * largest_[LARGEST_ERROR] +
                         digits.second * largest_[LARGEST_SECOND] +
                         8 * u * length * largest_[LARGEST_INTEGERS];
    if (!(logits[order[ranked.count - 1]] > least + bound + 1e-6 * std::fabs(least) + 1e-25) ||
        !(bound < MOST_BOUND))
        return false;
    for (int i = 0; i < ranked.count; i++) {
        ranked.values[i] = logits[order[i]];
        ranked.ids[i] = found.ids[order[i]];
    }
    *ranked.log_sums += std::log1p(change);
    return true;
}

// By products of any kind.
void Vocabulary::rank_all(Workspace& w, const Packed& own, const Input& given, int rows,
                          const Ranked& ranked) const {
    const int threads = w.team.threads(), chunks = (size_ + CHUNK - 1) / CHUNK;
    std::vector<Ranking> all((size_t)threads * rows);
    const size_t room = ranked.count;
    float* values = w.bounds.reserve(all.size() * room);
    int32_t* ids = w.candidates.reserve(all.size() * room);
    float* sums = w.chunks.reserve((size_t)rows * 2 * chunks);
    for (size_t i = 0; i < all.size(); i++) {
        Ranking& one = all[i];
        one.room = ranked.count;
        one.values = values + i * room;
        one.ids = ids + i * room;
        one.highest = sums + i % rows * 2 * chunks;
        one.sums = one.highest + chunks;
    }
    const float* bias = ranked.bias ? ranked.bias : bias_.data();
    share(w, rows, [&](int first, int last, int thread) {
        w.kernels.rank(own, given, rows, first, last, {bias, size_},
                       all.data() + (size_t)thread * rows);
    });
    w.team.run(rows, 64.0 * rows * (chunks + threads * room), [&](int row, int) {
        const Ranking& first = all[row];
        LogOfSums log;
        for (int i = 0; i < chunks; i++) log.add(first.highest[i], first.sums[i]);
        ranked.log_sums[row] = log.value();
        merge(all.data() + row, rows, threads, ranked.values + row * room, ranked.ids + row * room);
    });
}

Buffer<float> Vocabulary::allowed_without(int32_t token) const {
    Buffer<float> allowed(allowed_.size());
    std::copy_n(allowed_.data(), allowed_.size(), allowed.data());
    if (token >= 0 && token < size_) allowed[token] = -INFINITY;  // as columns behind the last
    return allowed;
}

// Where the best token of all is not the barred one, it is the best of the others too. So if some
// rows are barred and some are not, only those that chose it are computed again.
void Vocabulary::best(Workspace& w, const float* x, int rows, int32_t* out,
                      const Barred& barred) const {
    const auto all = barred.allowed ? std::count(barred.rows, barred.rows + rows, 1) : 0;
    best(w, x, rows, out, all && all == rows ? barred.allowed : allowed_.data());
    if (!all || all == rows) return;
    std::vector<int> again;
    for (int row = 0; row < rows; row++)
        if (barred.rows[row] && out[row] == barred.token) again.push_back(row);
    const size_t ld = width(d_), count = again.size();
    Buffer<float> states(count * ld);
    std::vector<int32_t> found(count);
    for (size_t i = 0; i < count; i++) std::copy_n(x + again[i] * ld, ld, states.data() + i * ld);
    best(w, states.data(), (int)count, found.data(), barred.allowed);
    for (size_t i = 0; i < count; i++) out[again[i]] = found[i];
}

void Vocabulary::best(Workspace& w, const float* x, int rows, int32_t* out,
                      const float* allowed) const {
    for (int row = 0; row < rows; row += ROWS)
        screen(w, x + row * width(d_), std::min(ROWS, rows - row), out + row, allowed);
}

void Vocabulary::screen(Workspace& w, const float* x, int rows, int32_t* out,
                        const float* allowed) const {
    const int threads = w.team.threads();
    const Input input =
        w.quantized.make(w.kernels, w.team, x, width(d_), rows, d_, packed_.largest);
    std::vector<Screen> screens((size_t)threads * rows);
    w.candidates.reserve(screens.size() * ROOM);
    w.bounds.reserve(screens.size() * ROOM);
    for (size_t i = 0; i < screens.size(); i++) {
        screens[i].ids = w.candidates.data() + i * ROOM;
        screens[i].upper = w.bounds.data() + i * ROOM;
        screens[i].room = ROOM;
    }
    const float u = 0x1p-24f, g = (d_ + 2) * u * 1.01f;
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
    const ScreenColumns columns{allowed, errors_.data(), lengths_.data(), !rows_};
    const double work = (double)rows * d_ * w.kernels.panel;
    const Chunks chunks(panels_, work, threads);
    w.team.run(chunks.count, work * panels_, [&](int task, int thread) {
        w.kernels.screen(packed_, input, rows, chunks.first(task), chunks.last(task), columns,
                         screens.data() + (size_t)thread * rows);
    });
    const size_t turned = (size_t)d_ * w.kernels.lanes;  // a row
    float* room = w.turned.reserve(threads * turned);
    w.team.run(rows, 16.0 * rows * d_, [&](int row, int thread) {
        out[row] = pick(w.kernels, threads, x + row * width(d_), screens.data() + row, rows,
                        room + thread * turned, allowed);
    });
}

int32_t Vocabulary::pick(const Kernels& kernels, int threads, const float* x, const Screen* screens,
                         size_t apart, float* room, const float* allowed) const {
    float low = -INFINITY;
    Best best;
    Input turned;
    turned.turned = room;
    if (rows_) kernels.turn(x, 0, 1, d_, room);
    for (int i = 0; i < threads; i++) {
        if (screens[i * apart].full) return best_of_all(kernels, turned, allowed);
        low = std::max(low, screens[i * apart].best);
    }
    int32_t columns[MOST_PANEL];
    float values[MOST_PANEL];
    int count = 0;
    const auto compute = [&] {
        if (!count) return;
        some_logits(kernels, turned, 1, {rows_, stride_, columns, count}, allowed, values, count);
        for (int i = 0; i < count; i++) best.add(values[i], columns[i]);
        count = 0;
    };
    for (int i = 0; i < threads; i++) {
        const Screen& s = screens[i * apart];
        for (int at = 0; at < s.count; at++) {
            if (!(s.upper[at] >= low)) continue;
            if (!rows_) {
                best.add(s.upper[at], s.ids[at]);
                continue;
            }
            columns[count++] = s.ids[at];
            if (count == kernels.panel) compute();
        }
    }
    compute();
    return best.column;
}

int32_t Vocabulary::best_of_all(const Kernels& kernels, const Input& turned,
                                const float* allowed) const {
    float values[CHUNK];
    Packed own = weights();
    Best best;
    for (int panel = 0, first = 0; first < size_; panel++, first += kernels.panel) {
        const int count = std::min(kernels.panel, size_ - first);
        kernels.linear(own, turned, 1, panel, panel + 1, {values - first, 0, allowed, size_});
        for (int i = 0; i < count; i++) best.add(values[i], first + i);
    }
    return best.column;
}

}  // namespace tfn
