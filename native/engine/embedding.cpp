#include "embedding.h"

#include <algorithm>

namespace tfn {

PositionTable::PositionTable(Tensors& tensors, const Config& config, const std::string& name)
    : table_(tensors.take(name + ".table", config.max_positions, config.d_model)) {}

void PositionTable::add(int position, float* x) const {
    if (table_.flat()) {
        const float* row = static_cast<const float*>(table_.data) + position * table_.row_stride;
        for (size_t i = 0; i < table_.columns; i++) x[i] += row[i];
        return;
    }
    for (size_t i = 0; i < table_.columns; i++) x[i] += table_.at(position, i);
}

Embedding::Embedding(Tensors& tensors, const Config& config, const std::string& name,
                     int vocabulary, float scale, EmbeddingNorm norm, int unplaced_id)
    : tokens_(tensors.take(name + ".tokens.weight", vocabulary, config.d_model)), kind_(norm),
      scale_(scale), d_(config.d_model), unplaced_id_(unplaced_id) {
    if (config.has_positions && !config.positions_every_layer)
        positions_ = PositionTable(tensors, config, name + ".positions");
    if (norm == EmbeddingNorm::tokens) norm_ = Norm(tensors, config, name + ".token_norm");
    if (norm == EmbeddingNorm::sum) norm_ = Norm(tensors, config, name + ".norm");
}

void Embedding::embed(Workspace& w, const std::vector<int>& ids,
                      const std::vector<int>& positions) const {
    const int rows = (int)ids.size();
    const size_t ld = width(d_);
    float* x = w.x.reserve(rows * ld);
    for (int row = 0; row < rows; row++) {
        float* to = x + row * ld;
        tokens_.copy_row(ids[row], to);
        for (int i = 0; i < d_; i++) to[i] *= scale_;
        std::fill(to + d_, to + ld, 0.0f);
    }
    if (kind_ == EmbeddingNorm::tokens) norm_.apply(w, x, x, rows);
    if (positions_)
        for (int row = 0; row < rows; row++)
            if (ids[row] != unplaced_id_) positions_.add(positions[row], x + row * ld);
    if (kind_ == EmbeddingNorm::sum) norm_.apply(w, x, x, rows);
}

}  // namespace tfn
