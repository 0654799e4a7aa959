#include "pool.h"

namespace tfn {

Pool::Pool(const Kernels& kernels, int threads)
    : kernels_(kernels), threads_(threads), process_(system::process()) {}

Pool::~Pool() {
    delete of_fork_.load();
    // The parent's threads cannot be joined here, nor can what they wait on be destroyed.
    for (auto& each : free_)
        if (forked()) each.release();
}

std::unique_ptr<Workspace> Pool::take() {
    if (forked()) {
        if (Workspace* kept = of_fork_.exchange(nullptr)) return std::unique_ptr<Workspace>(kept);
        return std::unique_ptr<Workspace>(new Workspace(kernels_, 1));
    }
    {
        std::lock_guard<std::mutex> lock(mutex_);
        if (!free_.empty()) {
            auto found = std::move(free_.back());
            free_.pop_back();
            return found;
        }
    }
    return std::unique_ptr<Workspace>(new Workspace(kernels_, threads_));
}

void Pool::give_back(std::unique_ptr<Workspace> workspace) {
    if (forked()) {
        delete of_fork_.exchange(workspace.release());
        return;
    }
    std::lock_guard<std::mutex> lock(mutex_);
    try {
        free_.push_back(std::move(workspace));
    } catch (const std::bad_alloc&) {
        // Then the next call makes another.
    }
}

}  // namespace tfn
