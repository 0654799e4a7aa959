// Keys and values of BLOCK positions of a source in a layer: [head][keys, values][position][values
// of a head], so that what a query of one head reads lies together.
#pragma once
#include <cstring>

#include "linear.h"

namespace tfn {

struct BlockLayout {
    Heads heads;

    size_t values() const {
        return (size_t)BLOCK * heads.padded;
    }  // from a head's keys to its values
    size_t head() const { return 2 * values(); }  // from a head to the next
    size_t size() const { return head() * heads.count; }
    static int count(int positions) { return (positions + BLOCK - 1) / BLOCK; }

    // Writes a position: keys of all heads, and behind them values of all heads.
    void write(const float* position, float* block, int place) const {
        const size_t bytes = heads.padded * sizeof(float);
        float* to = block + (size_t)place * heads.padded;
        for (int i = 0; i < heads.count; i++, position += heads.padded, to += head()) {
            std::memcpy(to, position, bytes);
            std::memcpy(to + values(), position + heads.width(), bytes);
        }
    }
};

}  // namespace tfn
