// Keys and values of the positions that a decoder row has written, each of which rows may share.
#pragma once
#include <memory>
#include <vector>

#include "block.h"

namespace tfn {

// Of one position: of each layer the keys of all heads, and behind them the values.
using Position = std::shared_ptr<Buffer<float>>;

// Makes positions, and takes them back when no row holds them.
class Positions {
public:
    explicit Positions(size_t size) : size_(size), free_(std::make_shared<Free>()) {}

    Position make() {
        std::unique_ptr<Buffer<float>> position;
        if (free_->empty()) {
            position.reset(new Buffer<float>(size_));
        } else {
            position = std::move(free_->back());
            free_->pop_back();
        }
        auto home = free_;
        return Position(position.release(), [home](Buffer<float>* buffer) {
            std::unique_ptr<Buffer<float>> free(buffer);
            try {
                home->push_back(std::move(free));
            } catch (const std::bad_alloc&) {
                // Then it is given back to the system.
            }
        });
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
    int length() const { return (int)held_.size(); }
    // Makes room for more positions, which no other row has.
    void extend(Positions& positions, int count) {
        held_.reserve(held_.size() + count);
        for (; count > 0; count--) held_.push_back(positions.make());
    }
    // Forgets the positions from `length` on.
    void shorten(int length) { held_.resize(length); }
    float* position(int i) const { return held_[i]->data(); }

private:
    std::vector<Position> held_;
};

}  // namespace tfn
