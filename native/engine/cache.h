// Keys and values of the positions that a decoder row has written, in blocks that rows may share.
#pragma once
#include <memory>
#include <vector>

#include "block.h"

namespace tfn {

// Of BLOCK positions of all layers; a layer's part is a BlockLayout.
using Block = std::shared_ptr<Buffer<float>>;

// Makes blocks, and takes them back when no row holds them.
class Blocks {
public:
    explicit Blocks(size_t size) : size_(size), free_(std::make_shared<Free>()) {}

    Block make() {
        std::unique_ptr<Buffer<float>> block;
        if (free_->empty()) {
            block.reset(new Buffer<float>(size_));
        } else {
            block = std::move(free_->back());
            free_->pop_back();
        }
        auto home = free_;
        return Block(block.release(), [home](Buffer<float>* buffer) {
            std::unique_ptr<Buffer<float>> free(buffer);
            try {
                home->push_back(std::move(free));
            } catch (const std::bad_alloc&) {
                // Then it is given back to the system.
            }
        });
    }
    Block copy_of(const Block& block) {
        Block made = make();
        std::memcpy(made->data(), block->data(), size_ * sizeof(float));
        return made;
    }
    // Gives memory back that no row holds.
    void release() { free_->clear(); }

private:
    using Free = std::vector<std::unique_ptr<Buffer<float>>>;
    size_t size_;
    std::shared_ptr<Free> free_;
};

// The positions of one row.
class Cache {
public:
    int length() const { return length_; }
    // Makes room for more positions; a block that another row holds too is copied.
    void extend(Blocks& blocks, int positions) {
        held_.reserve(BlockLayout::count(length_ + positions));
        if (length_ % BLOCK && held_.back().use_count() > 1)
            held_.back() = blocks.copy_of(held_.back());
        while (held_.size() * BLOCK < (size_t)length_ + positions) held_.push_back(blocks.make());
        length_ += positions;
    }
    // Forgets the positions from `length` on.
    void shorten(int length) {
        length_ = length;
        held_.resize((length + BLOCK - 1) / BLOCK);
    }
    float* block(int i) const { return held_[i]->data(); }
    int blocks() const { return (int)held_.size(); }

private:
    std::vector<Block> held_;
    int length_ = 0;
};

}  // namespace tfn
