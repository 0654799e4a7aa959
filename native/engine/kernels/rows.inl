// Work on single rows: quantisation, norms, attention, and what ends a step. Included by an
// instruction set's file behind "linear.inl".

namespace tfn {
namespace {

// Integers of a row of K values lie in a range of so many steps that their sums with int8 weights
// cannot overflow 32 bits, nor those of pairs 16 bits where an instruction set has such.
INLINE float steps_of(int k, int largest) {
    if (SUMS_OF_PAIRS) {
        const int fits = 32767 / (2 * (largest > 0 ? largest : 1));
        return fits < STEPS ? (float)fits : STEPS;
    }
    const double fits = 2147483647.0 / 128.0 / (k > 0 ? k : 1);
    return fits < STEPS ? (float)(int)fits : STEPS;
}

// Asymmetric where a row has 8 bits: what an activation leaves is often of one sign.
Quantization quantize(const float* x, int k, int padded, int largest, void* quantized) {
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
    const float steps = steps_of(padded, largest);
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

// Scores of one block of positions. Their values, which are needed soon, are fetched from memory
// meanwhile. WIDTH vectors of a position, or any number if it is 0.
template <int WIDTH>
INLINE void scores_of(const Attend& a, const float* const* positions, float* scores) {
    const int width = WIDTH ? WIDTH : a.dim / LANES;
    const size_t values = a.value - a.key;
    const float* keys[BLOCK];
#pragma GCC unroll 8
    for (int j = 0; j < BLOCK; j++) keys[j] = positions[j] + a.key;
    F sums[BLOCK] = {};
#pragma GCC unroll 4
    for (int v = 0; v < width; v++) {
        const F query = load(a.query + v * LANES);
#pragma GCC unroll 8
        for (int j = 0; j < BLOCK; j++) sums[j] += query * load(keys[j] + v * LANES);
        if (v * LANES % 16) continue;  // of a cache line, which is fetched already
#pragma GCC unroll 8
        for (int j = 0; j < BLOCK; j++) __builtin_prefetch(keys[j] + values + v * LANES, 0, 3);
    }
    lane_sums(sums, scores);
}

template <int WIDTH>
INLINE void scores_of(const Attend& a) {
    int at = 0;
    for (; at + BLOCK <= a.n; at += BLOCK) scores_of<WIDTH>(a, a.positions + at, a.weights + at);
    if (at == a.n) return;
    const float* last[BLOCK];  // the first of them again behind the last position
    for (int j = 0; j < BLOCK; j++) last[j] = a.positions[at + j < a.n ? at + j : at];
    scores_of<WIDTH>(a, last, a.weights + at);
}

// Weighted sums of values, times a factor: of even and of odd positions, each in a chain.
template <int WIDTH>
INLINE void contexts(const Attend& a, float factor, int from) {
    F even[WIDTH] = {}, odd[WIDTH] = {};
    const size_t offset = a.value + from;
    const auto add = [&](F* sums, int at) __attribute__((always_inline)) {
        const float* values = a.positions[at] + offset;
        const float weight = a.weights[at];
#pragma GCC unroll 8
        for (int v = 0; v < WIDTH; v++) sums[v] += weight * load(values + v * LANES);
    };
    int at = 0;
#pragma GCC unroll 4
    for (; at + 2 <= a.n; at += 2) {
        add(even, at);
        add(odd, at + 1);
    }
    if (at < a.n) add(even, at);
#pragma GCC unroll 8
    for (int v = 0; v < WIDTH; v++)
        store(a.context + from + v * LANES, (even[v] + odd[v]) * factor);
}

// Turns each head's scores s into exp(s - the largest), and gives factors that make weights of
// them. In whole vectors: what is added to the sum for places behind the last, 1e-38, is lost in
// it.
INLINE void exponentials(const Attend* heads, int count, float* factors) {
    static_assert(MOST_TOGETHER == BLOCK, "vectors that are reduced together");
    F found[MOST_TOGETHER];
    for (int i = 0; i < MOST_TOGETHER; i++) found[i] = splat(-INFINITY);
    for (int i = 0; i < count; i++) {
        const Attend& a = heads[i];
        for (int at = 0; at < a.n; at += LANES) {
            F v = load(a.weights + at) * a.scale;
            if (a.bias) v += load(a.bias + at);
            v = places() < a.n - at ? v : splat(-INFINITY);
            store(a.weights + at, v);
            found[i] = larger(found[i], v);
        }
    }
    float most[MOST_TOGETHER], sums[MOST_TOGETHER];
    lane_maxima(found, most);
    for (int i = 0; i < MOST_TOGETHER; i++) found[i] = F{};
    for (int i = 0; i < count; i++) {
        const Attend& a = heads[i];
        for (int at = 0; at < a.n; at += LANES) {
            const F v = exponential(load(a.weights + at) - most[i]);
            store(a.weights + at, v);
            found[i] += v;
        }
    }
    lane_sums(found, sums);
    for (int i = 0; i < MOST_TOGETHER; i++) factors[i] = 1.0f / sums[i];
}

// A head's scores, weights and context each wait for the one before, and for memory: what several
// heads are at is done side by side.
void attend(const Attend* heads, int count) {
    const Attend* end = heads + count;
    for (const Attend* a = heads; a < end; a++) switch (a->dim / LANES) {
            case 1: scores_of<1>(*a); break;
            case 2: scores_of<2>(*a); break;
            case 4: scores_of<4>(*a); break;
            default: scores_of<0>(*a);
        }
    float factors[MOST_TOGETHER];
    exponentials(heads, count, factors);
    for (int i = 0; i < count; i++) {
        const Attend& a = heads[i];
        const float factor = factors[i];
        int from = 0;
        for (; from + 4 * LANES <= a.dim; from += 4 * LANES) contexts<4>(a, factor, from);
        for (; from + 2 * LANES <= a.dim; from += 2 * LANES) contexts<2>(a, factor, from);
        for (; from < a.dim; from += LANES) contexts<1>(a, factor, from);
        for (int at = 0; a.keeps_weights && at < a.n; at += LANES)
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
    LogOfSums log;
    for (int at = 0; at < n; at += CHUNK) {
        const int end = at + CHUNK < n ? at + CHUNK : n;
        F sums = F{};
        float reference = -INFINITY;
        for (int i = at; i < end; i += LANES) {
            float part[LANES];
            for (int j = 0; j < LANES; j++) part[j] = i + j < n ? x[i + j] : -INFINITY;
            sums = with_exponentials(reference, sums, i + LANES <= n ? load(x + i) : load(part));
        }
        log.add(reference, sum(sums));
    }
    return log.value();
}

}  // namespace
}  // namespace tfn
