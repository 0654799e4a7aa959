// Work on single rows: quantisation, norms, attention, and what ends a step. Included by an
// instruction set's file behind "linear.inl".

namespace tfn {
namespace {

// Integers of a row of K values lie in a range of so many steps that their sums with int8 weights
// cannot overflow 32 bits.
INLINE float steps_of(int k) {
    const double fits = 2147483647.0 / 128.0 / (k > 0 ? k : 1);
    return fits < STEPS ? (float)(int)fits : STEPS;
}

// Asymmetric where a row has 8 bits: what an activation leaves is often of one sign.
Quantization quantize(const float* x, int k, int padded, void* quantized) {
    F lows = F{}, highs = F{};
    int i = 0;
    for (; i + LANES <= k; i += LANES) {
        F v = load(x + i);
        lows = smaller(lows, v);
        highs = larger(highs, v);
    }
    float low = -highest(-lows), high = highest(highs);
    for (; i < k; i++) {
        low = x[i] < low ? x[i] : low;
        high = x[i] > high ? x[i] : high;
    }
    if (SYMMETRIC) low = low < -high ? low : -high;
    const float steps = steps_of(padded);
    float range = SYMMETRIC ? -low : high - low;
    if (!(range > 1e-30f)) range = 1e-30f;  // all zeros
    const float inverse = steps / range, scale = range / steps;
    float zero = SYMMETRIC ? 0.0f : std::nearbyint(-low * inverse);
    if (!(zero <= steps)) zero = 0;  // of values that are not finite, as is `scale` then
    const F least = splat(SYMMETRIC ? -steps : -zero), most = splat(steps - zero);
    Value* q = (Value*)quantized;
    for (i = 0; i + LANES <= k; i += LANES)
        store_values(q + i, smaller(larger(load(x + i) * inverse, least), most), (int)zero);
    if (i < k) {
        float rest[LANES] = {};
        Value values[LANES];
        memcpy(rest, x + i, sizeof(float) * (k - i));
        store_values(values, smaller(larger(load(rest) * inverse, least), most), (int)zero);
        memcpy(q + i, values, sizeof(Value) * (k - i));
    }
    for (i = k; i < padded; i++) q[i] = 0;
    return {scale, (int)zero + OFFSET};
}

void quantization_error(const float* x, const void* quantized, Quantization how, int k,
                        float* length, float* error) {
    const Value* q = (const Value*)quantized;
    double of_row = 0, of_error = 0;
    for (int i = 0; i < k; i++) {
        double value = (q[i] - how.zero) * (double)how.scale, off = x[i] - value;
        of_row += value * value;
        of_error += off * off;
    }
    *length = (float)(std::sqrt(of_row) * 1.000001);
    *error = (float)(std::sqrt(of_error) * 1.000001);
}

INLINE float sum_of(const float* x, int d, float mean, bool squared) {
    F sums = F{};
    int i = 0;
    for (; i + LANES <= d; i += LANES) {
        F v = load(x + i) - mean;
        sums += squared ? v * v : v;
    }
    float total = sum(sums);
    for (; i < d; i++) total += squared ? (x[i] - mean) * (x[i] - mean) : x[i] - mean;
    return total;
}

void norm(NormKind kind, float eps, const float* weight, const float* bias, const float* x,
          float* y, int d, int padded) {
    float mean = kind == NormKind::rms ? 0.0f : sum_of(x, d, 0.0f, false) / d;
    float squares = sum_of(x, d, mean, true);
    float factor = kind == NormKind::annotated ? 1.0f / (std::sqrt(squares / (d - 1)) + eps)
                                               : 1.0f / std::sqrt(squares / d + eps);
    int i = 0;
    for (; i + LANES <= d; i += LANES) {
        F v = (load(x + i) - mean) * factor * load(weight + i);
        store(y + i, bias ? v + load(bias + i) : v);
    }
    for (; i < d; i++) y[i] = (x[i] - mean) * factor * weight[i] + (bias ? bias[i] : 0.0f);
    for (; i < padded; i++) y[i] = 0.0f;
}

// Scores of one block of positions, of which all are computed and the first `count` kept. Its values,
// which are needed soon, are fetched from memory meanwhile.
INLINE void scores_of(const Attend& a, const float* block, int count, float* scores) {
    const float *keys = block + a.key, *values = block + a.value;
    F sums[BLOCK] = {};
    size_t apart[BLOCK];
    // Behind the last position there may be no memory: the first is read again.
#pragma GCC unroll 8
    for (int j = 0; j < BLOCK; j++) apart[j] = j < count ? j * a.stride : 0;
    for (int i = 0; i < a.dim; i += LANES) {
        F q = load(a.query + i);
#pragma GCC unroll 8
        for (int j = 0; j < BLOCK; j++) sums[j] += q * load(keys + apart[j] + i);
        if (i % 16) continue;  // of a cache line, which is fetched already
#pragma GCC unroll 8
        for (int j = 0; j < BLOCK; j++) __builtin_prefetch(values + apart[j] + i, 0, 3);
    }
    lane_sums(sums, scores);
}

// Weighted sums of values, times a factor.
template <int WIDTH>
INLINE void contexts(const Attend& a, float factor, int from) {
    F even[WIDTH] = {}, odd[WIDTH] = {};
    for (int at = 0; at < a.n; at += BLOCK) {
        const float* values = a.blocks[at / BLOCK] + a.value + from;
        int count = a.n - at < BLOCK ? a.n - at : BLOCK;
        for (int j = 0; j + 1 < count; j += 2) {
            const float *one = values + j * a.stride, *two = one + a.stride;
            float first = a.weights[at + j], second = a.weights[at + j + 1];
#pragma GCC unroll 8
            for (int v = 0; v < WIDTH; v++) {
                even[v] += first * load(one + v * LANES);
                odd[v] += second * load(two + v * LANES);
            }
        }
        if (count % 2) {
            const float* one = values + (count - 1) * a.stride;
            float first = a.weights[at + count - 1];
#pragma GCC unroll 8
            for (int v = 0; v < WIDTH; v++) even[v] += first * load(one + v * LANES);
        }
    }
#pragma GCC unroll 8
    for (int v = 0; v < WIDTH; v++) store(a.context + from + v * LANES, (even[v] + odd[v]) * factor);
}

// Turns n scores that lie in s into exp(x - the largest); one by the sum of them, by which they are
// weights. In whole vectors: what is added to the sum for places behind n, 1e-38, is lost in it.
INLINE float exponentials(float* s, int n, float scale, const float* bias) {
    F highs = splat(-INFINITY);
    for (int at = 0; at < n; at += LANES) {
        F v = load(s + at) * scale;
        if (bias) v += load(bias + at);
        v = places() < n - at ? v : splat(-INFINITY);
        store(s + at, v);
        highs = larger(highs, v);
    }
    const float most = highest(highs);
    F sums = F{};
    for (int at = 0; at < n; at += LANES) {
        const F v = exponential(load(s + at) - most);
        store(s + at, v);
        sums += v;
    }
    return 1.0f / sum(sums);
}

// A head's scores, weights and context each wait for the one before, and for memory: what several
// heads are at is done side by side.
void attend(const Attend* heads, int count) {
    const Attend* end = heads + count;
    for (const Attend* a = heads; a < end; a++)
        for (int at = 0; at < a->n; at += BLOCK) {
            const int some = a->n - at < BLOCK ? a->n - at : BLOCK;
            scores_of(*a, a->blocks[at / BLOCK], some, a->weights + at);
        }
    float factors[MOST_TOGETHER];
    for (int i = 0; i < count; i++) {
        const Attend& a = heads[i];
        factors[i] = exponentials(a.weights, a.n, a.scale, a.bias);
    }
    for (int i = 0; i < count; i++) {
        const Attend& a = heads[i];
        const float factor = factors[i];
        int from = 0;
        for (; from + 4 * LANES <= a.dim; from += 4 * LANES) contexts<4>(a, factor, from);
        for (; from + 2 * LANES <= a.dim; from += 2 * LANES) contexts<2>(a, factor, from);
        for (; from < a.dim; from += LANES) contexts<1>(a, factor, from);
        for (int at = 0; at < a.n; at += LANES)
            store(a.weights + at, load(a.weights + at) * factor);
    }
}

int argmax(const float* x, int n) {
    constexpr int CHUNK = 16 * LANES;
    float best = -INFINITY;
    int found = 0;
    for (int at = 0; at < n; at += CHUNK) {
        int end = at + CHUNK < n ? at + CHUNK : n, i = at;
        F top = splat(-INFINITY);
        for (; i + LANES <= end; i += LANES) top = larger(top, load(x + i));
        float most = highest(top);
        for (; i < end; i++) most = x[i] > most ? x[i] : most;
        if (most > best) {
            best = most;
            found = at;
        }
    }
    for (int i = found; i < n; i++)
        if (x[i] == best) return i;
    return 0;
}

void top(const float* x, int n, int count, float* values, int32_t* ids) {
    int found = 0;
    auto take = [&](int i) {
        if (found == count && !(x[i] > values[count - 1])) return;
        int place = found < count ? found++ : count - 1;
        for (; place > 0 && x[i] > values[place - 1]; place--) {
            values[place] = values[place - 1];
            ids[place] = ids[place - 1];
        }
        values[place] = x[i];
        ids[place] = i;
    };
    int i = 0;
    for (; i < n && i < count; i++) take(i);
    for (; i + LANES <= n; i += LANES) {
        if (!exceeds(load(x + i), values[count - 1])) continue;
        for (int j = 0; j < LANES; j++) take(i + j);
    }
    for (; i < n; i++) take(i);
}

double log_sum_exp(const float* x, int n) {
    float most = x[argmax(x, n)];
    if (!(most > -INFINITY)) return -INFINITY;
    constexpr int CHUNK = 16 * LANES;
    double total = 0;
    for (int at = 0; at < n; at += CHUNK) {
        int end = at + CHUNK < n ? at + CHUNK : n, i = at;
        F sums = F{};
        // Below -87 the exponential is clipped to 1e-38, which a vocabulary's sum does not notice.
        for (; i + LANES <= end; i += LANES) sums += exponential(load(x + i) - most);
        float part = sum(sums);
        for (; i < end; i++) part += std::exp(x[i] - most);
        total += part;
    }
    return most + std::log(total);
}

bool runs_here();

}  // namespace

#define DEFINE_KERNELS(NAME)                                                                    \
    extern const Kernels NAME##_kernels;                                                        \
    const Kernels NAME##_kernels = {                                                            \
        #NAME, LANES, PANEL, GROUP, DEPTH, (int)sizeof(Value), runs_here, linear, screen, dots, quantize, \
        quantization_error, norm, attend, argmax, top, log_sum_exp};

}  // namespace tfn
