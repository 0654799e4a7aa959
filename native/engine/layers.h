// The parts of a layer, and their weights.
#pragma once
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "config.h"
#include "linear.h"
#include "relative.h"

namespace tfn {

// What a part needs to run on M rows: threads, kernels, and memory between its products.
struct Workspace {
    Workspace(const Kernels& kernels, int threads) : kernels(kernels), team(threads) {}

    const Kernels& kernels;
    Team team;
    Buffer<float> x, y, projected, context, hidden, scores, biases, angles, states, logits, bounds,
        turned, chunks, packed;
    Buffer<uint16_t> split;
    Buffer<int32_t> candidates;
    Quantized quantized;
    std::vector<std::unique_ptr<Workspace>> parts;  // a thread's own, when threads share rows

    // Raises Cancelled once the caller has set its flag. Another thread may set it at any time.
    const int32_t* cancelled = nullptr;
    void check_cancelled() const {
        if (cancelled && __atomic_load_n(cancelled, __ATOMIC_RELAXED)) throw Cancelled();
    }
};

// f(workspace, first, last) for each thread's part of some rows, in workspaces of their own.
template <class F>
void share_rows(Workspace& w, int rows, F&& f) {
    const size_t threads = w.team.threads();
    while (w.parts.size() < threads) w.parts.emplace_back(new Workspace(w.kernels, 1));
    std::vector<std::exception_ptr> failed(threads);
    w.team.run_by_rows([&](int part, int thread) {
        const int first = (int)(rows * part / threads), last = (int)(rows * (part + 1) / threads);
        if (first == last) return;
        try {
            f(*w.parts[thread], first, last);
        } catch (...) {  // for want of memory
            failed[part] = std::current_exception();
        }
    });
    for (auto& part : w.parts) w.team.count(part->team);
    for (auto& failure : failed)
        if (failure) std::rethrow_exception(failure);
}

// A row of a residual stream lies `width(d)` values behind the one before it; what pads it is 0.
inline size_t width(int d) { return round_up(d, 16); }

class Norm {
public:
    Norm() = default;
    Norm(Tensors& tensors, const Config& config, const std::string& name);
    explicit operator bool() const { return d_ > 0; }
    // Rows x to rows y, which may be x.
    void apply(Workspace& w, const float* x, float* y, int rows) const;

private:
    NormKind kind_ = NormKind::layer;
    float eps_ = 0;
    int d_ = 0;
    bool has_bias_ = false;
    View<float> weight_, bias_;
};

class Residual {
public:
    Residual() = default;
    Residual(Tensors& tensors, const Config& config, Placement placement, const std::string& name);
    // What the sublayer reads, from the stream in w.x.
    const float* enter(Workspace& w, int rows) const;
    // Adds a projection of rows of `from` to the stream.
    void leave(Workspace& w, Role role, int rows, const Linear& last, const float* from,
               size_t ld) const;

private:
    Placement placement_ = Placement::post;
    float scale_ = 1;
    int d_ = 0;
    Norm norm_;
};

// A query among its keys and values; see ``Attend``.
struct Query {
    const float* const* positions;  // neighbours that share them are attended with together
    size_t layer_size;              // between layers
    int n;
    int position;        // of the query among the keys, for relative positions
    float* weights_out;  // of the first layer that is wanted and its first head, or null
};

// Where keys and values of a layer's first head lie, how far apart heads do, and those of
// weights_out.
struct Places {
    size_t key, value, head;
    int layer = 0;
    size_t weights_apart = 0;
    int first_weighed = 0;  // the layer that weights_out begins with
};

struct Attention {
    Heads heads;
    float scale = 1;
    Linear projection, out;  // queries, or queries, keys and values
    RelativePositions own;   // of this layer
    Residual residual;
};

// Context of all queries and heads into w.context; the queries are rows of `queries`.
void attend(Workspace& w, const Attention& attention, const RelativePositions* relative,
            const std::vector<Query>& rows, const float* queries, size_t ld, Places places);

struct FeedForward {
    Linear up, gate, down;
    bool gated = false;
    Activation activation = Activation::relu;
    int width = 0;
    Residual residual;

    void run(Workspace& w, Role role, int rows) const;
};

// A product of rows into rows, `ld_out` apart.
void project(Workspace& w, const Linear& linear, Role role, const float* x, size_t ld, int rows,
             float* y, size_t ld_out, Activation activation = Activation::none,
             Then then = Then::store);

}  // namespace tfn
