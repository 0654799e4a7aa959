// The output projection: logits, the token of the largest one, and what beams need of them.
//
// In float32 the largest logit is found without computing all of them in float32. Products of
// integers bound every logit from both sides; columns whose upper bound is below another's lower
// bound cannot win, and what is left, a few columns, is computed as `logits` computes it.
//
// clang-format off
// Why the bounds hold. u = 2^-24, the largest relative error of a rounded float32 operation. For a
// row x and a column w of K values,
//     L   is the logit that `logits` gives: a float32 sum of the products, with the bias added;
//     x'  and w' are their integers times their scales, |x - x'| and |w - w'| what that leaves out;
//     P   is the float32 value of x' w': the exact sum of products of integers (it cannot overflow:
//         see `steps_of`), turned into a float, times the product of two scales;
//     V   is P with the bias added, which is all that the kernel has.
// How far L and V can be apart:
//  1. x w - x' w' = (x - x') w + x' (w - w'), by Cauchy-Schwarz at most
//         |x - x'| |w| + |x'| |w - w'|.
//  2. P has three roundings (the integer, the scales' product, the product with it): it is off by
//         at most 3.01 u |x'| |w'| <= 3.01 u |x'| (|w| + |w - w'|).
//  3. The sum in L: a term passes through at most m = K + 1 roundings: its product, and a chain of
//     K sums. So it is off by at most g |x| |w|, g = m u / (1 - m u) (Higham, Accuracy and
//     Stability of Numerical Algorithms, 2nd edition, 3.1), and |x| <= |x'| + |x - x'|.
//  4. The sums with the bias round by at most u |L| and u |V|, and so do V + bound and V - bound.
//  5. Numbers too small for float32's exponent may become 0, which is off by 2^-126 for each of K
//     products in L, and in the product of scales, which a sum below 2^31 multiplies: below 10^-28.
// Hence
//     |L - V| <= error |w| + |x'| |w - w'| + 10^-6 |V| + 10^-25
//     error = |x - x'| + g (|x'| + |x - x'|) + 4 u |x'|
// where 1 and 3 are in `error`, 2 in its 4 u and in 10^-6 of the second term, 4 in 10^-6 |V|, 5 in
// 10^-25. The norms are rounded up by 10^-6 of themselves, about 16 u: that pays for 2's second
// half, for the roundings of the bound itself, which has only positive terms, and for 4's u times
// it.
// What is no number is never a candidate.
//
// The best K of a row, and the log of the sum of all its exponentials, come from integers of two
// digits, where a set has products of them: x' + r' and w' + s' are x and w to about 16 bits, and V
// is x' w' + x' s' + r' w' with the bias. As above,
//     |L - V| <= (|x - x' - r'| + g |x|) |w| + |x' + r'| |w - w' - s'| + |r'| |s'|
//                + 8 u (|x'| + |r'|) (|w'| + |s'|) + 10^-6 |V| + 10^-25
// where 8 u are six roundings of each product on its way into V, and more. The largest |w|,
// |w - w' - s'|, |s'| and |w'| + |s'| of all columns stand for each. A few more columns than K, those
// of the largest V, are computed as `logits` computes them. If the K-th of these is above what any
// other column can have, by the smallest V that was computed and the bound, they are the best K;
// otherwise that row is computed in float32. Of the sum, the terms that are known are put right. What
// is left has an error of 10^-5 to 10^-4 in each exponent, about what g allows a float32 sum.
// clang-format on
#pragma once
#include "layers.h"

namespace tfn {

// Added to a logit: not -inf, of which differences are no numbers.
constexpr float SUPPRESSED = -1e30f;

struct Ranked {
    int count = 0;                // of a row
    const float* bias = nullptr;  // in place of the own, or null
    float* values = nullptr;      // (rows, count), best first, ties by the lower id; -inf for none
    int32_t* ids = nullptr;
    double* log_sums = nullptr;  // (rows,)
};

// A token that some rows may not choose, such as the end token below a least length.
struct Barred {
    int32_t token = -1;
    const float* allowed = nullptr;  // of `Vocabulary::allowed_without`; null: no row is barred
    const uint8_t* rows = nullptr;   // (rows,): whether each is

    Barred from(int row) const { return {token, allowed, rows ? rows + row : nullptr}; }
};

class Vocabulary {
public:
    Vocabulary() = default;
    Vocabulary(const Kernels& kernels, Tensors& tensors, const Config& config);

    int size() const { return size_; }
    const float* bias() const { return bias_.data(); }
    // All logits (rows, V) of states (rows, width(E)), `ld` apart; of `columns` ids alone, those.
    void logits(Workspace& w, const float* x, int rows, float* out, size_t ld) const;
    void logits_of(Workspace& w, const float* x, int rows, const int32_t* columns, int count,
                   float* out, size_t ld) const;
    // The best logits of each row, and the log of the sum of all their exponentials.
    void rank(Workspace& w, const float* x, int rows, const Ranked& ranked) const;
    // Whether so many of them come from products of integers.
    bool ranks_by_integers(int count) const;
    // The token of the largest logit of each row among those that are not suppressed, nor barred.
    void best(Workspace& w, const float* x, int rows, int32_t* out,
              const Barred& barred = {}) const;
    // What is added to logits where `token` may not be chosen either.
    Buffer<float> allowed_without(int32_t token) const;

private:
    void rank_floats(Workspace& w, const float* x, int rows, const Ranked& ranked) const;
    void rank_integers(Workspace& w, const float* x, int rows, const Ranked& ranked) const;
    void rank_all(Workspace& w, const Packed& own, const Input& given, int rows,
                  const Ranked& ranked) const;
    bool settle(const Kernels& kernels, const float* x, const Digits& digits, const Ranked& found,
                const Ranked& ranked, float* room) const;
    void keep_rows(Tensors& tensors, const Tensor& weight);
    void make_screen(const Kernels& kernels, Tensors& tensors, const Tensor& weight);
    void fill_screen(const Kernels& kernels, float* row, int column, int k, float* largest);
    void best(Workspace& w, const float* x, int rows, int32_t* out, const float* allowed) const;
    void screen(Workspace& w, const float* x, int rows, int32_t* out, const float* allowed) const;
    int32_t pick(const Kernels& kernels, int threads, const float* x, const Screen* screens,
                 size_t apart, float* room, const float* allowed) const;
    int32_t best_of_all(const Kernels& kernels, const Input& turned, const float* allowed) const;
    void some_logits(const Kernels& kernels, const Input& input, int rows, const Table& columns,
                     const float* bias, float* out, size_t ld) const;
    Input input(Workspace& w, const float* x, int rows) const;
    Packed weights() const;
    template <class Use>
    void share(Workspace& w, int rows, Use&& use) const;

    int size_ = 0, d_ = 0;
    Values rows_;  // (V, E)
    size_t stride_ = 0;
    View<float> own_, bias_, allowed_;  // allowed_: bias, and -1e30 where suppressed
    View<uint16_t> halves_;             // or these in place of `own_`
    Linear quantized_;                  // of an int8 model
    View<int8_t> integers_;             // of the screen
    View<int32_t> sums_;
    View<float> scales_, errors_, lengths_;
    View<int8_t> seconds_;  // digits; those are the first ones
    View<float> largest_;   // see LARGEST_LENGTH
    Packed packed_;
    int panels_ = 0;
};

}  // namespace tfn
