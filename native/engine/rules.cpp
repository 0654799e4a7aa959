#include "rules.h"

#include <algorithm>
#include <cmath>

namespace tfn {
namespace {

void ban(const Ids& ids, float* logits) {
    for (int32_t id : ids) logits[id] = -INFINITY;
}

// Bans what follows the last n - 1 of `seen` anywhere in `ids`.
void ban_ngrams(const Ids& ids, const Ids& seen, int n, float* logits, int size) {
    const int before = n - 1;
    if (seen.count < before) return;
    for (int at = before; at < ids.count; at++) {
        const int32_t next = ids.ids[at];  // of a source, whose vocabulary may be another
        if (next < size && std::equal(seen.end() - before, seen.end(), ids.ids + (at - before)))
            logits[next] = -INFINITY;
    }
}

}  // namespace

double BeamRules::normalize(double sum, int length) const {
    return sum / std::pow((double)length, length_penalty);
}

// The order is that of tfexport's ``LogitFilters``: what comes later overrides.
void BeamRules::apply(const Row& row, float* logits, int size) const {
    const Ids made = row.tokens.from(1), seen = on_log_probs ? row.tokens : made;
    if (repetition_penalty != 1) penalize(seen, row.room, logits);
    if (ngram) ban_ngrams(seen, seen, ngram, logits, size);
    if (source_ngram) ban_ngrams(row.source, seen, source_ngram, logits, size);
    ban_sequences(made, logits);
    apply_everywhere(made.count, logits, size);
}

void BeamRules::apply_everywhere(int made, float* logits, int size) const {
    if (made < min_length) ban(ends, logits);
    if (forces_last(made)) {
        std::fill_n(logits, size, -INFINITY);
        logits[last] = 0;
    }
    ban(suppressed, logits);
    if (made == (first >= 0)) ban(suppressed_first, logits);
}

bool BeamRules::need_few_logits(int made) const {
    if (forces_last(made)) return false;
    if (on_log_probs) return !renormalize && repetition_penalty >= 1;
    return repetition_penalty == 1 && !ngram && !source_ngram && !lengths.count;
}

// Keskar et al. 2019. A token that came twice is penalised once.
void BeamRules::penalize(const Ids& seen, float* room, float* logits) const {
    for (int i = 0; i < seen.count; i++) {
        const float value = logits[seen.ids[i]];
        room[i] = value > 0 ? value / repetition_penalty : value * repetition_penalty;
    }
    for (int i = 0; i < seen.count; i++) logits[seen.ids[i]] = room[i];
}

void BeamRules::ban_sequences(const Ids& made, float* logits) const {
    const int32_t* sequence = sequences.ids;
    for (int32_t length : lengths) {
        const int before = length - 1;
        if (before <= made.count && std::equal(sequence, sequence + before, made.end() - before))
            logits[sequence[before]] = -INFINITY;
        sequence += length;
    }
}

double exact_sum(const std::vector<double>& values) {
    std::vector<double> parts;  // of the sum, none of which overlaps another, ascending
    for (double value : values) {
        size_t kept = 0;
        for (double part : parts) {
            if (std::fabs(value) < std::fabs(part)) std::swap(value, part);
            const double high = value + part, low = part - (high - value);
            if (low != 0) parts[kept++] = low;
            value = high;
        }
        parts.resize(kept);
        parts.push_back(value);
    }
    double high = 0, low = 0;
    size_t left = parts.size();
    while (left > 0 && low == 0) {
        const double before = high, part = parts[--left];
        high = before + part;
        low = part - (high - before);
    }
    // Half of the last place is rounded by what lies below it.
    if (left > 0 && ((low < 0 && parts[left - 1] < 0) || (low > 0 && parts[left - 1] > 0))) {
        const double twice = 2 * low, next = high + twice;
        if (twice == next - high) high = next;
    }
    return high;
}

}  // namespace tfn
