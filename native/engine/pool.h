// Workspaces of a model's calls: calls at the same time have their own.
//
// A fork has none of the threads of its parent, and perhaps a lock that one of them held. Its calls
// take neither: they run in one thread each, in memory of their own.
#pragma once
#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "layers.h"
#include "system.h"

namespace tfn {

class Pool {
public:
    Pool(const Kernels& kernels, int threads);
    ~Pool();
    std::unique_ptr<Workspace> take();
    void give_back(std::unique_ptr<Workspace> workspace);

private:
    bool forked() const { return system::process() != process_; }

    const Kernels& kernels_;
    const int threads_;
    const int64_t process_;
    std::mutex mutex_;
    std::vector<std::unique_ptr<Workspace>> free_;
    std::atomic<Workspace*> of_fork_{nullptr};
};

}  // namespace tfn
