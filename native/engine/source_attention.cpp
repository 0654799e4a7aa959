#include "source_attention.h"

#include <algorithm>

namespace tfn {
namespace {

constexpr int SCORES = 96 << 10;   // of a tile: they and a head's keys stay in the second cache
constexpr int MOST_QUERIES = 160;  // of a tile

// One source: its heads are packed one after another, and its queries are cut into tiles.
struct Part {
    int row, length, queries, tiles;
    size_t lds, keys, values;  // between rows of scores; packed, of a head
    size_t at;                 // of the first head
    int task;                  // the first of all heads' tiles
};

}  // namespace

void attend_within(Workspace& w, const Attention& attention, const int32_t* lengths, int count,
                   const float* projected, size_t ld) {
    const Heads& heads = attention.heads;
    const size_t panel = w.kernels.panel, inner = heads.width(), dim = heads.padded;
    std::vector<Part> parts;
    size_t packed = 0, scores = 0, parts_of_rows = 0;
    int rows = 0, tasks = 0, queries = 0;
    double work = 0;
    for (int i = 0; i < count; i++) {
        const int n = lengths[i];
        const size_t columns = round_up(n, panel), lds = columns + 16;
        const int most = std::clamp(SCORES / (int)columns, 1, MOST_QUERIES);
        const int tiles = (n + most - 1) / most, each = (n + tiles - 1) / tiles;
        parts.push_back(
            {rows, n, each, tiles, lds, columns * dim, round_up(dim, panel) * n, packed, tasks});
        packed += heads.count * (parts.back().keys + parts.back().values);
        scores = std::max(scores, lds * each);
        parts_of_rows = std::max(parts_of_rows, round_up(each, SPLIT_ROWS) / SPLIT_ROWS *
                                                    parts_size(std::max(n, heads.padded)));
        queries = std::max(queries, each);
        rows += n;
        tasks += heads.count * tiles;
        work += 2.0 * n * n * inner;
    }
    float* all = w.packed.reserve(packed);
    float* context = w.context.reserve(rows * inner);
    const size_t room = scores + round_up(queries, 16) + 16;  // a cache line between threads'
    float* own = w.scores.reserve(room * w.team.threads());
    const size_t threads = w.kernels.split ? w.team.threads() : 0;
    uint16_t* split = w.split.reserve(parts_of_rows * threads);
    w.team.run(count * heads.count, 4.0 * rows * inner, [&](int task, int) {
        const Part& p = parts[task / heads.count];
        const int head = task % heads.count;
        float* keys = all + p.at + head * (p.keys + p.values);
        const float* from = projected + p.row * ld + inner + head * dim;
        w.kernels.pack_source(from, from + inner, ld, p.length, (int)dim, keys, keys + p.keys);
    });
    w.team.run(tasks, work, [&](int task, int thread) {
        size_t i = 0;
        while (i + 1 < parts.size() && parts[i + 1].task <= task) i++;
        const Part& p = parts[i];
        const int head = (task - p.task) / p.tiles, tile = (task - p.task) % p.tiles;
        const int first = tile * p.queries, last = std::min(p.length, first + p.queries);
        if (first >= last) return;  // tiles of queries that were rounded up
        const size_t row = p.row + first;
        const float* keys = all + p.at + head * (p.keys + p.values);
        float* scores = own + thread * room;
        w.kernels.attend_source({projected + row * ld + head * dim, ld, last - first, keys,
                                 keys + p.keys, p.length, (int)dim, attention.scale, scores, p.lds,
                                 scores + room - 16 - round_up(queries, 16),
                                 split + thread * (threads ? parts_of_rows : 0),
                                 context + row * inner + head * dim, inner});
    });
}

}  // namespace tfn
