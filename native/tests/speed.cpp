// Speed of the kernels as shares of what one thread of this machine can do at most. Times are the
// thread's own, so that neighbours disturb them little.
//     speed [NAME of an instruction set [sources]]
// `sources`: products of whole sources, beside those that rows of steps take.
#include <ctime>

#include <algorithm>
#include <cstring>

#include "kernels/check.h"

using namespace tfn;

namespace {

double seconds() {
    timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

// The least of several times, in seconds of one call.
template <class F>
double timed(F&& f, int calls = 1) {
    double least = 1e9;
    for (int round = 0; round < 9; round++) {
        const double start = seconds();
        for (int i = 0; i < calls; i++) f();
        least = std::min(least, (seconds() - start) / calls);
    }
    return least;
}

typedef float F8 __attribute__((vector_size(32)));
constexpr int LARGEST = 63;  // of the int8 weights that bundles have
constexpr int TURNS = 1 << 20;

#if defined(__x86_64__)
#define TARGET __attribute__((target("avx2,fma")))
#define KEEP(v) asm volatile("" : "+x"(v))
#else
#define TARGET
#define KEEP(v) asm volatile("" : "+m"(v))
#endif

// Multiply-adds a second of vectors that wait for nothing. Of eight floats: wider ones are faster
// where a processor has them.
TARGET double peak() {
    double least = 1e9;
    for (int round = 0; round < 9; round++) {
        F8 one = F8{} + 1.0f, a = one, b = a + 1, c = b + 1, d = c + 1, e = d + 1, f = e + 1;
        F8 g = f + 1, h = g + 1, i = h + 1, j = i + 1;  // all different, or they would be one
        KEEP(one);
        const double start = seconds();
        for (int turn = 0; turn < TURNS; turn++) {
            a = a * one + one, b = b * one + one, c = c * one + one, d = d * one + one;
            e = e * one + one, f = f * one + one, g = g * one + one, h = h * one + one;
            i = i * one + one, j = j * one + one;
            KEEP(one);
        }
        least = std::min(least, seconds() - start);
        a = a + b + c + d + e + f + g + h + i + j;
        KEEP(a);
    }
    return 80.0 * TURNS / least;
}

// Bytes a second that are read from memory.
TARGET double bandwidth(const std::vector<float>& memory) {
    float sink = 0;
    const double time = timed([&]() TARGET {
        F8 sums[4] = {};
        for (size_t i = 0; i + 32 <= memory.size(); i += 32)
            for (int j = 0; j < 4; j++) {
                F8 v;
                memcpy(&v, memory.data() + i + 8 * j, sizeof v);
                sums[j] += v;
            }
        sink += sums[0][0] + sums[1][0] + sums[2][0] + sums[3][0];
    });
    asm volatile("" : : "r"(&sink) : "memory");
    return memory.size() * sizeof(float) / time;
}

// Rows of whole sources: of floats both ways, and of int8.
void measure_sources(const Kernels& kernels, double most) {
    Random random(1);
    for (const auto& [n, k] : {std::pair<int, int>{256, 256},
                               {768, 256},
                               {512, 512},
                               {2048, 512},
                               {512, 2048},
                               {3072, 768},
                               {768, 3072}})
        for (const std::string name : {"float32", "parts", "bfloat16", "int8"}) {
            const bool int8 = name == "int8";
            if (name != "float32" && !int8 && !kernels.split) continue;
            Weights w = make_weights(kernels, random, n, k, int8, LARGEST);
            if (name == "bfloat16") w = as_halves(kernels, w, Half::bfloat16);
            std::printf("%-8s %5d x %4d:", name.c_str(), n, k);
            for (int m : {5, 20, 160, 577, 1500}) {
                Rows rows = make_rows(kernels, random.normals((size_t)m * k), m, k, int8, LARGEST);
                if (name != "float32" && !int8) split_rows(kernels, rows);
                std::vector<float> y((size_t)m * n);
                const Epilogue end{y.data(), (size_t)n, w.bias.data(), n};
                const double all = (double)m * n * k;
                const double time =
                    timed([&] { kernels.linear(w.form, rows.input, m, 0, w.panels, end); },
                          std::max(1, (int)(2e8 / all)));
                std::printf("  %4d: %6.2f", m, all / time / most);
            }
            std::printf("\n");
        }
}

}  // namespace

int main(int count, char** arguments) {
    const Kernels* kernels = count > 1 ? kernels_named(arguments[1]) : &tfn::kernels();
    if (!kernels) return std::printf("%s does not run here\n", arguments[1]), 1;
    Random random(1);
    const std::vector<float> memory(48u << 20, 1.0f);  // 192 MiB, more than caches hold
    const double most = peak(), bytes = bandwidth(memory);
    std::printf("peak %.1f G multiply-adds/s (8 floats), memory %.1f GB/s; %s\n", most * 1e-9,
                bytes * 1e-9, kernels->name);
    if (count > 2) return measure_sources(*kernels, most), 0;
    for (const auto& [n, k] : {std::pair<int, int>{64, 96},
                               {768, 256},
                               {256, 1024},
                               {1536, 512},
                               {512, 2048},
                               {32000, 512}})
        for (const std::string name : {"float32", "bfloat16", "float16", "int8"}) {
            const bool int8 = name == "int8";
            const Half type = name == "bfloat16"  ? Half::bfloat16
                              : name == "float16" ? Half::float16
                                                  : Half::none;
            Weights w = make_weights(*kernels, random, n, k, int8, LARGEST);
            if (type != Half::none) w = as_halves(*kernels, w, type);
            std::printf("%-8s %5d x %4d:", name.c_str(), n, k);
            for (int m : {1, 2, 4, 8, 16, 32}) {
                const Rows rows =
                    make_rows(*kernels, random.normals((size_t)m * k), m, k, int8, LARGEST);
                std::vector<float> y((size_t)m * n);
                const Epilogue end{y.data(), (size_t)n, w.bias.data(), n};
                const double time =
                    timed([&] { kernels->linear(w.form, rows.input, m, 0, w.panels, end); },
                          n > 9000 ? 1 : 40);
                std::printf("  %2d: %5.2f %5.1fGB/s", m, (double)m * n * k / time / most,
                            (double)n * k * (int8 ? 1 : w.form.floats.size()) / time * 1e-9);
            }
            std::printf("\n");
        }
}
