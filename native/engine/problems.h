// Errors that a caller may read: what was found, what was expected, all of it at once.
#pragma once
#include <exception>
#include <stdexcept>
#include <string>

namespace tfn {

class Error : public std::runtime_error {
public:
    using std::runtime_error::runtime_error;
};

// The caller has asked a running call to end.
class Cancelled : public std::exception {
public:
    const char* what() const noexcept override { return "cancelled"; }
};

// A search has come to a row for which its rules allow no token.
class WithoutToken : public std::exception {
public:
    const char* what() const noexcept override { return "no token is allowed"; }
};

class Problems {
public:
    void add(const std::string& problem) {
        if (++count_ <= MOST) found_ += (found_.empty() ? "" : "; ") + problem;
    }
    void raise() const {
        if (!count_) return;
        int more = count_ - MOST;
        throw Error(more > 0 ? found_ + "; and " + std::to_string(more) + " more" : found_);
    }

private:
    static constexpr int MOST = 12;
    int count_ = 0;
    std::string found_;
};

}  // namespace tfn
