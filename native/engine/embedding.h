// Token ids to vectors: table, scale, positions, norm.
#pragma once
#include "layers.h"

namespace tfn {

class PositionTable {
public:
    PositionTable() = default;
    PositionTable(Tensors& tensors, const Config& config, const std::string& name);
    explicit operator bool() const { return table_.data != nullptr; }
    void add(int position, float* x) const;

private:
    Tensor table_;
};

class Embedding {
public:
    Embedding() = default;
    Embedding(Tensors& tensors, const Config& config, const std::string& name, int vocabulary,
              float scale, EmbeddingNorm norm, int unplaced_id);
    // Rows of these ids at these positions into w.x.
    void embed(Workspace& w, const std::vector<int>& ids, const std::vector<int>& positions) const;
    const Tensor& tokens() const { return tokens_; }

private:
    Tensor tokens_;
    PositionTable positions_;
    EmbeddingNorm kind_ = EmbeddingNorm::none;
    Norm norm_;
    float scale_ = 1;
    int d_ = 0, unplaced_id_ = -1;
};

}  // namespace tfn
