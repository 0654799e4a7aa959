// Weights in 16 bits, each of which is widened to exactly the float32 value that it was.
//
// bfloat16 is the upper half of a float32; float16 is IEEE 754's. What a type cannot give back to the
// last bit stays float32, so that a product never depends on how its weights are stored.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

// Never a function of its own: sets of instructions share nothing.
#define INLINE inline __attribute__((always_inline))

namespace tfn {

enum class Half : uint32_t { none, bfloat16, float16 };  // none: float32
constexpr uint32_t MOST_HALF = (uint32_t)Half::float16;

INLINE uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}
INLINE float float_of(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

INLINE float widened(Half type, uint16_t half) {
    if (type == Half::bfloat16) return float_of((uint32_t)half << 16);
    const uint32_t sign = (uint32_t)(half & 0x8000) << 16, rest = (uint32_t)(half & 0x7fff) << 13;
    // Subnormal ones by a difference, which is exact and knows no subnormal float32.
    const float size = half & 0x7c00 ? float_of(rest + (112u << 23))
                                     : float_of(rest + (113u << 23)) - 0x1p-14f;
    return float_of(bits_of(size) | sign);
}

// The value in 16 bits, if there it is the same; of float16 only finite ones are.
INLINE bool narrowed(Half type, float value, uint16_t* to) {
    const uint32_t bits = bits_of(value), rest = bits & 0x7fffffff, exponent = rest >> 23;
    if (type == Half::bfloat16) {
        *to = (uint16_t)(bits >> 16);
        return !(bits & 0xffff);
    }
    if (rest && (exponent < 103 || exponent > 142)) return false;  // 2^-24 to 2^15
    uint32_t half = 0;
    if (exponent >= 113) half = (rest - (112u << 23)) >> 13;
    else if (rest) half = ((rest & 0x7fffff) | 0x800000) >> (126 - exponent);
    *to = (uint16_t)(half | bits >> 31 << 15);
    return bits_of(widened(type, *to)) == bits;
}

// Float32 values as they are stored.
class Values {
public:
    Values() = default;
    Values(const float* data) : data_((const char*)data) {}
    Values(const uint16_t* data, Half type) : data_((const char*)data), type_(type) {}
    explicit operator bool() const { return data_ != nullptr; }
    Half type() const { return type_; }
    size_t size() const { return type_ == Half::none ? sizeof(float) : sizeof(uint16_t); }
    Values operator+(size_t count) const {
        Values moved = *this;
        moved.data_ += count * size();
        return moved;
    }
    template <class T>
    const T* as() const {
        return (const T*)data_;
    }

private:
    const char* data_ = nullptr;
    Half type_ = Half::none;
};

}  // namespace tfn
