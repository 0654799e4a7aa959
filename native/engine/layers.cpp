#include "layers.h"

#include <algorithm>

namespace tfn {

Norm::Norm(Tensors& tensors, const Config& config, const std::string& name)
    : kind_(config.norm), eps_(config.norm_eps), d_(config.d_model),
      has_bias_(config.norm_bias && config.norm != NormKind::rms) {
    weight_ = tensors.vector(name + ".weight", d_, width(d_));
    if (has_bias_) bias_ = tensors.vector(name + ".bias", d_, width(d_));
}

void Norm::apply(Workspace& w, const float* x, float* y, int rows) const {
    const size_t ld = width(d_);
    const int each = 4, tasks = (rows + each - 1) / each;
    w.team.run(tasks, 6.0 * rows * d_, [&](int task, int) {
        for (int row = task * each; row < std::min(rows, task * each + each); row++)
            w.kernels.norm(kind_, eps_, weight_.data(), has_bias_ ? bias_.data() : nullptr,
                           x + row * ld, y + row * ld, d_, (int)ld);
    });
}

Residual::Residual(Tensors& tensors, const Config& config, Placement placement,
                   const std::string& name)
    : placement_(placement), scale_(config.residual_scale), d_(config.d_model),
      norm_(tensors, config, name + ".norm") {}

const float* Residual::enter(Workspace& w, int rows) const {
    if (placement_ != Placement::pre) return w.x.data();
    float* y = w.y.reserve(rows * width(d_));
    norm_.apply(w, w.x.data(), y, rows);
    return y;
}

void Residual::leave(Workspace& w, Role role, int rows, const Linear& last, const float* from,
                     size_t ld) const {
    const size_t apart = width(d_);
    if (placement_ == Placement::res_post) {
        float* y = w.y.reserve(rows * apart);
        project(w, last, role, from, ld, rows, y, apart);
        norm_.apply(w, y, y, rows);
        for (size_t i = 0; i < rows * apart; i++) w.x[i] = scale_ * w.x[i] + y[i];
        return;
    }
    Epilogue out{w.x.data(), apart, nullptr, (int)apart, Then::add, Activation::none, scale_};
    run_linear(w.kernels, w.team, last, role, from, ld, rows, w.quantized, out);
    if (placement_ == Placement::post) norm_.apply(w, w.x.data(), w.x.data(), rows);
}

void attend(Workspace& w, const Attention& attention, const RelativePositions* relative,
            const std::vector<Query>& rows, const float* queries, size_t ld, Places places) {
    const Heads& heads = attention.heads;
    const size_t ldc = heads.width();
    double work = 0;
    int longest = 0;
    for (const Query& row : rows) {
        work += 2.0 * row.n * ldc;
        longest = std::max(longest, row.n);
    }
    const size_t room = round_up(longest, MOST_LANES) + 16;  // a cache line between heads'
    const int threads = w.team.threads();
    float* context = w.context.reserve(rows.size() * ldc);
    float* scores = w.scores.reserve(room * threads * MOST_TOGETHER);
    float* biases = w.biases.reserve(room * threads * MOST_TOGETHER);
    const int all = (int)rows.size() * heads.count;
    // Head after head of the queries that share positions, so that those of a head are read from
    // memory once.
    struct Sharing {
        int first, count;
    };
    std::vector<Sharing> sharing(rows.size());
    for (int first = 0, end; first < (int)rows.size(); first = end) {
        for (end = first + 1; end < (int)rows.size(); end++)
            if (rows[end].positions != rows[first].positions) break;
        std::fill_n(sharing.begin() + first, end - first, Sharing{first, end - first});
    }
    const auto place_of = [&](int i) {
        const Sharing of = sharing[i / heads.count];
        const int place = i - of.first * heads.count;
        return std::pair<int, int>(of.first + place % of.count, place / of.count);
    };
    const int wanted = (int)std::max(1.0, std::min(work / 20e3, 8.0 * threads));
    const int each = std::max((all + wanted - 1) / wanted, 1), tasks = (all + each - 1) / each;
    const bool biased = relative && relative->adds_bias();
    const bool weighs = biased && relative->adds_to_context();
    const bool weighed = places.layer >= places.first_weighed;
    const auto prepare = [&](int i, size_t place) {
        const auto [row, head] = place_of(i);
        const Query& q = rows[row];
        const size_t offset = (size_t)head * heads.padded;
        const size_t from = places.layer * q.layer_size + head * places.head;
        Attend a{queries + row * ld + offset,
                 q.positions,
                 from + places.key,
                 from + places.value,
                 q.n,
                 heads.padded,
                 attention.scale,
                 nullptr,
                 scores + place * room,
                 context + row * ldc + offset,
                 (q.weights_out && weighed) || weighs};
        if (biased) {
            float* bias = biases + place * room;
            relative->fill_bias(w.kernels, head, q.position, q.n, a.query, a.scale, bias);
            a.bias = bias;
        }
        return a;
    };
    const auto finish = [&](int i, const Attend& a) {
        const auto [row, number] = place_of(i);
        const Query& q = rows[row];
        if (weighs) relative->add_to_context(a.weights, q.position, q.n, a.context);
        if (!q.weights_out || !weighed) return;
        const size_t head = (size_t)(places.layer - places.first_weighed) * heads.count + number;
        std::copy_n(a.weights, q.n, q.weights_out + head * places.weights_apart);
    };
    w.team.run(tasks, 2 * work, [&](int task, int thread) {
        const int end = std::min(all, task * each + each);
        Attend some[MOST_TOGETHER];
        for (int first = task * each; first < end; first += MOST_TOGETHER) {
            const int count = std::min(MOST_TOGETHER, end - first);
            for (int i = 0; i < count; i++)
                some[i] = prepare(first + i, (size_t)thread * MOST_TOGETHER + i);
            w.kernels.attend(some, count);
            for (int i = 0; i < count; i++) finish(first + i, some[i]);
        }
    });
}

void FeedForward::run(Workspace& w, Role role, int rows) const {
    const size_t ld = tfn::width(width);
    const float* x = residual.enter(w, rows);
    const size_t from = tfn::width(up.inputs());
    float* hidden = w.hidden.reserve(rows * ld);
    if (gated) {
        project(w, gate, role, x, from, rows, hidden, ld, activation);
        project(w, up, role, x, from, rows, hidden, ld, Activation::none, Then::multiply);
    } else {
        project(w, up, role, x, from, rows, hidden, ld, activation);
    }
    residual.leave(w, role, rows, down, hidden, ld);
}

void project(Workspace& w, const Linear& linear, Role role, const float* x, size_t ld, int rows,
             float* y, size_t ld_out, Activation activation, Then then) {
    Epilogue out{y, ld_out, nullptr, (int)ld_out, then, activation, 1};
    run_linear(w.kernels, w.team, linear, role, x, ld, rows, w.quantized, out);
}

}  // namespace tfn
