// Instructions of AVX-512, VNNI and AMX as plain C++, by the definitions in Intel's manual, for the
// tests of kernels on processors that lack them. Those of AVX2 are the processor's own.
#pragma once
#include_next <immintrin.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace emulated {

// A vector as an array of its values, and back.
template <class T, class V>
struct Lanes {
    static constexpr int COUNT = sizeof(V) / sizeof(T);
    T at[COUNT] = {};
    Lanes() = default;
    explicit Lanes(const V& v) { memcpy(at, &v, sizeof v); }
    V vector() const {
        V v;
        memcpy(&v, at, sizeof v);
        return v;
    }
};

template <class To, class ToVector, class From, class FromVector>
inline ToVector converted(const FromVector& v) {
    const Lanes<From, FromVector> from(v);
    Lanes<To, ToVector> to;
    for (int i = 0; i < from.COUNT; i++) to.at[i] = (To)from.at[i];
    return to.vector();
}

// Of each 32 bits: sums of products of unsigned and signed bytes, without saturation.
template <class V>
inline V dpbusd(const V& sums, const V& a, const V& b) {
    Lanes<uint32_t, V> s(sums);
    const Lanes<uint8_t, V> x(a);
    const Lanes<int8_t, V> y(b);
    for (int i = 0; i < x.COUNT; i++) s.at[i / 4] += (uint32_t)(x.at[i] * y.at[i]);
    return s.vector();
}
inline __m512i madd_epi16(const __m512i& a, const __m512i& b) {
    const Lanes<int16_t, __m512i> x(a), y(b);
    Lanes<uint32_t, __m512i> s;
    for (int i = 0; i < x.COUNT; i++) s.at[i / 2] += (uint32_t)(x.at[i] * y.at[i]);
    return s.vector();
}
inline __m512i add_epi32(const __m512i& a, const __m512i& b) {
    Lanes<uint32_t, __m512i> x(a);
    const Lanes<uint32_t, __m512i> y(b);
    for (int i = 0; i < x.COUNT; i++) x.at[i] += y.at[i];
    return x.vector();
}
inline __m512i cvtps_epi32(const __m512& v) {  // to the nearest, ties to even
    const Lanes<float, __m512> x(v);
    Lanes<int32_t, __m512i> y;
    for (int i = 0; i < x.COUNT; i++)
        y.at[i] = std::fabs(x.at[i]) < 2147483648.0f ? (int32_t)std::nearbyint(x.at[i]) : INT32_MIN;
    return y.vector();
}
inline int cmp_ps_mask(const __m512& a, const __m512& b, int how) {
    const Lanes<float, __m512> x(a), y(b);
    int mask = 0;
    for (int i = 0; i < x.COUNT; i++)
        mask |= (how == _CMP_GE_OQ ? x.at[i] >= y.at[i] : x.at[i] > y.at[i]) << i;
    return mask;
}
template <class T, class V>
inline V set1(T value) {
    Lanes<T, V> v;
    for (T& each : v.at) each = value;
    return v.vector();
}
template <class To, class From>
inline To part(const From& v, int which) {
    To to;
    memcpy(&to, (const char*)&v + which * sizeof to, sizeof to);
    return to;
}
inline __m512i loadu(const void* p) {
    __m512i v;
    memcpy(&v, p, sizeof v);
    return v;
}

inline __m512 cvtph_ps(const __m256i& halves) {
    Lanes<float, __m512> v;
    const Lanes<uint16_t, __m256i> h(halves);
    for (int i = 0; i < v.COUNT; i++) v.at[i] = _cvtsh_ss(h.at[i]);
    return v.vector();
}

struct Tiles {
    struct {
        uint8_t palette, start, reserved[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } config;
    uint8_t at[8][16][64];
};
inline Tiles& tiles() {
    static thread_local Tiles state = {};
    return state;
}
inline void expect(bool holds, const char* what) {
    if (holds) return;
    std::printf("invalid instruction: %s\n", what);
    std::abort();
}
inline void loadconfig(const void* from) {
    memset(&tiles(), 0, sizeof tiles());
    memcpy(&tiles().config, from, sizeof tiles().config);
    for (int i = 0; i < 8; i++)
        expect(tiles().config.rows[i] <= 16 && tiles().config.bytes[i] <= 64, "ldtilecfg");
}
inline void storeconfig(void* to) { memcpy(to, &tiles().config, sizeof tiles().config); }
inline void zero(int tile) { memset(tiles().at[tile], 0, sizeof tiles().at[tile]); }
inline void loadd(int tile, const void* from, size_t stride) {
    Tiles& t = tiles();
    expect(t.config.palette == 1 && t.config.rows[tile], "tileloadd");
    zero(tile);
    for (int row = 0; row < t.config.rows[tile]; row++)
        memcpy(t.at[tile][row], (const char*)from + row * stride, t.config.bytes[tile]);
}
inline void stored(int tile, void* to, size_t stride) {
    const Tiles& t = tiles();
    expect(t.config.palette == 1 && t.config.rows[tile], "tilestored");
    for (int row = 0; row < t.config.rows[tile]; row++)
        memcpy((char*)to + row * stride, t.at[tile][row], t.config.bytes[tile]);
}
// Bytes of A without or with signs times signed ones.
template <class Byte>
inline void tile_dpb(int sums, int a, int b) {
    Tiles& t = tiles();
    const auto& c = t.config;
    expect(c.palette == 1 && c.rows[sums] == c.rows[a] && c.bytes[sums] == c.bytes[b] &&
               c.bytes[a] == 4 * c.rows[b],
           "tdpb");
    for (int row = 0; row < c.rows[sums]; row++)
        for (int column = 0; column < c.bytes[sums] / 4; column++) {
            uint32_t sum;
            memcpy(&sum, &t.at[sums][row][4 * column], 4);
            for (int k = 0; k < c.bytes[a]; k++)
                sum +=
                    (uint32_t)((Byte)t.at[a][row][k] * (int8_t)t.at[b][k / 4][4 * column + k % 4]);
            memcpy(&t.at[sums][row][4 * column], &sum, 4);
        }
}

// Products of pairs of bfloat16: even and odd ones are chains of their own. Subnormal numbers are
// 0.
inline float normal(float v) { return std::fabs(v) < 0x1p-126f ? std::copysign(0.0f, v) : v; }
inline float of_bfloat16(const uint8_t* at) {
    uint32_t bits = (uint32_t)at[1] << 24 | (uint32_t)at[0] << 16;
    float v;
    memcpy(&v, &bits, 4);
    return normal(v);
}
inline void tile_dpbf16ps(int sums, int a, int b) {
    Tiles& t = tiles();
    const auto& c = t.config;
    expect(c.palette == 1 && c.rows[sums] == c.rows[a] && c.bytes[sums] == c.bytes[b] &&
               c.bytes[a] == 4 * c.rows[b],
           "tdpbf16ps");
    for (int row = 0; row < c.rows[sums]; row++)
        for (int column = 0; column < c.bytes[sums] / 4; column++) {
            float sum, chains[2] = {};
            memcpy(&sum, &t.at[sums][row][4 * column], 4);
            for (int k = 0; k < c.bytes[a] / 2; k++)
                chains[k % 2] = normal(std::fma(
                    of_bfloat16(&t.at[a][row][2 * k]),
                    of_bfloat16(&t.at[b][k / 2][4 * column + 2 * (k % 2)]), chains[k % 2]));
            sum = normal(normal(sum) + normal(chains[0] + chains[1]));
            memcpy(&t.at[sums][row][4 * column], &sum, 4);
        }
}

}  // namespace emulated

#undef _mm512_cmp_ps_mask
#undef _mm512_extractf64x4_pd
#undef _tile_loadd
#undef _tile_stream_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbusd
#undef _tile_dpbssd
#undef _tile_dpbf16ps
#undef _tile_loadconfig
#undef _tile_storeconfig
#define _mm512_cmp_ps_mask emulated::cmp_ps_mask
#define _mm512_extractf64x4_pd emulated::part<__m256d>
#define _mm512_castps512_ps256(v) emulated::part<__m256>(v, 0)
#define _mm512_cvtph_ps emulated::cvtph_ps
#define _mm512_set1_ps emulated::set1<float, __m512>
#define _mm512_set1_epi32 emulated::set1<int32_t, __m512i>
#define _mm512_add_epi32 emulated::add_epi32
#define _mm512_madd_epi16 emulated::madd_epi16
#define _mm512_cvtps_epi32 emulated::cvtps_epi32
#define _mm512_cvtepi32_epi8 emulated::converted<int8_t, __m128i, int32_t>
#define _mm512_cvtepi32_epi16 emulated::converted<int16_t, __m256i, int32_t>
#define _mm512_cvtepi8_epi16 emulated::converted<int16_t, __m512i, int8_t>
#define _mm512_loadu_si512 emulated::loadu
#define _mm512_dpbusd_epi32 emulated::dpbusd<__m512i>
#define _mm256_dpbusd_avx_epi32 emulated::dpbusd<__m256i>
#define _tile_loadconfig emulated::loadconfig
#define _tile_storeconfig emulated::storeconfig
#define _tile_zero emulated::zero
#define _tile_loadd emulated::loadd
#define _tile_stream_loadd emulated::loadd
#define _tile_stored emulated::stored
#define _tile_dpbusd emulated::tile_dpb<uint8_t>
#define _tile_dpbssd emulated::tile_dpb<int8_t>
#define _tile_dpbf16ps emulated::tile_dpbf16ps
