// How many multiply-adds a second one thread can do at most: 24 independent chains of them, in registers.
#include <chrono>
#if defined(__AVX512F__)
constexpr int W = 16, CHAINS = 24;
#elif defined(__AVX__)
constexpr int W = 8, CHAINS = 12;
#else
constexpr int W = 4, CHAINS = 12;
#endif
typedef float V __attribute__((vector_size(4 * W)));

extern "C" double fma_peak(double seconds) {
    V a[CHAINS] = {}, m = V{} + 0.999f, b = V{} + 1e-3f;
    const auto start = std::chrono::steady_clock::now();
    double passed = 0, done = 0;
    while ((passed = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count()) < seconds) {
        for (int k = 0; k < 100000; ++k)
#pragma GCC unroll 24
            for (int i = 0; i < CHAINS; ++i) a[i] = a[i] * m + b;
        done += 1e5 * CHAINS * W;
    }
    float sum = 0;
    for (V& v : a) sum += v[0];
    return sum < 0 ? 0 : done / passed;  // never 0, but the compiler cannot know
}
