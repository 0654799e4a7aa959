// Products of integers whose sums of four fit into 16 bits. Included by "linear.inl" where a set
// has `multiply_add_both`, inside its namespaces.
//
// A group is four values of K; a column's products with it are added in two pairs, in 16 bits. The
// pairs of two groups may be added in 16 bits too if the weights leave room for it, whatever a row
// has. The panels' weights lie as in other sets; an order says which groups go together.

static_assert(GROUP == PAIRED_GROUP && DEPTH == GROUP && SUMS_OF_PAIRS, "see `pair_groups`");
constexpr int FEWEST_PAIRED = 3;     // rows: fewer wait for weights, not for products
constexpr int MOST_PAIRED_ROWS = 4;  // whose sums and a pair's weights fit into the registers

// As `block_int8`: sums are exact, whatever the order is.
template <int ROWS>
__attribute__((noinline)) void block_paired(const Packed& w, const Input& input, int row, int panel,
                                            Fetch next, float* out) {
    I sums[ROWS][VECTORS] = {};
    const Value* x = (const Value*)input.quantized + row * input.ldq;
    const int8_t* weights = w.int8 + (size_t)panel * w.k * PANEL;
    const size_t ld = input.ldq;
    const int groups = w.k / GROUP;
    const uint16_t* order = w.order + panel * order_size(w.k);
    const int pairs = *order++;
    int k = 0;
    const auto fetch_next = [&]() __attribute__((always_inline)) {
        if (k == next.turn) next.first = next.later;
        fetch<PANEL * GROUP>(next, 0);
        next.first += next.step;
        k += GROUP;
    };
    for (int pair = 0; pair < pairs; pair++, order += 2) {
        const Value *x_one = x + order[0] * GROUP, *x_other = x + order[1] * GROUP;
        const int8_t *one = weights + order[0] * (PANEL * GROUP),
                     *other = weights + order[1] * (PANEL * GROUP);
        Weights columns[2][VECTORS];
#pragma GCC unroll 8
        for (int v = 0; v < VECTORS; v++) {
            columns[0][v] = load_weights(one + v * LANES * GROUP);
            columns[1][v] = load_weights(other + v * LANES * GROUP);
        }
        fetch_next();
        fetch_next();
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; r++) {
            int32_t values[2];
            memcpy(values, x_one + r * ld, 4);
            memcpy(values + 1, x_other + r * ld, 4);
#pragma GCC unroll 8
            for (int v = 0; v < VECTORS; v++)
                sums[r][v] = multiply_add_both(sums[r][v], columns[0][v], values[0], columns[1][v],
                                               values[1]);
        }
    }
    for (int group = 2 * pairs; group < groups; group++, order++) {
        const int8_t* one = weights + *order * (PANEL * GROUP);
        Weights columns[VECTORS];
#pragma GCC unroll 8
        for (int v = 0; v < VECTORS; v++) columns[v] = load_weights(one + v * LANES * GROUP);
        fetch_next();
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; r++) {
            int32_t values;
            memcpy(&values, x + *order * GROUP + r * ld, 4);
#pragma GCC unroll 8
            for (int v = 0; v < VECTORS; v++)
                sums[r][v] = multiply_add(sums[r][v], columns[v], values);
        }
    }
    const Quantization* how = input.rows + row;
#pragma GCC unroll 8
    for (int v = 0; v < VECTORS; v++) {
        const Columns of(w, panel * PANEL + v * LANES);
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; r++)
            store(out + r * PANEL + v * LANES, of.dequantized(how[r], sums[r][v]));
    }
}

// A group joins the first that waits for another one, if each column's four products are 16 bits
// whatever a row has: what is positive of them, and what is negative. Those that wait longest are
// in no pair. `steps_of` leaves each two of them half of the room, or more.
void pair_groups(const int8_t* panel, int k, int largest, uint16_t* order) {
    constexpr int LANES_OF_GROUP = PANEL * GROUP / 2, MOST_WAITING = 16;
    struct Waiting {
        int group;
        uint8_t positive[LANES_OF_GROUP], negative[LANES_OF_GROUP];
    } waiting[MOST_WAITING + 1];
    const int groups = k / GROUP, limit = 2 * (largest > 64 ? largest : 64);
    uint16_t *pair = order + 1, *alone = order + 1 + groups;  // the latter from behind
    int count = 0;
    for (int group = 0; group < groups; group++, panel += PANEL * GROUP) {
        Waiting& own = waiting[count];
        own.group = group;
        for (int i = 0; i < LANES_OF_GROUP; i++) {
            const int one = panel[2 * i], other = panel[2 * i + 1];
            own.positive[i] = (uint8_t)((one > 0 ? one : 0) + (other > 0 ? other : 0));
            own.negative[i] = (uint8_t)((one < 0 ? -one : 0) + (other < 0 ? -other : 0));
        }
        int found = 0;
        for (; found < count; found++) {
            int most = 0;
            for (int i = 0; i < LANES_OF_GROUP; i++) {
                const int positive = waiting[found].positive[i] + own.positive[i];
                const int negative = waiting[found].negative[i] + own.negative[i];
                const int larger = positive > negative ? positive : negative;
                most = most > larger ? most : larger;
            }
            if (most <= limit) break;
        }
        if (found < count) {
            *pair++ = (uint16_t)waiting[found].group;
            *pair++ = (uint16_t)group;
        } else if (count < MOST_WAITING) {
            count++;
            continue;
        } else {
            *--alone = (uint16_t)waiting[found = 0].group;
            count++;  // its own place
        }
        for (count--; found < count; found++) waiting[found] = waiting[found + 1];
    }
    while (count) *--alone = (uint16_t)waiting[--count].group;
    *order = (uint16_t)((pair - order) / 2);
}
