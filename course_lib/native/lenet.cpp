// LeNet-5 (tanh, average pooling) and its PGD walk, for one CPU. The equations are those of models.py and attacks.py. Behind them one
// small door: batch normalisation with ReLU.
//
// Why it is fast
// --------------
// * W images lie side by side, one in each lane of a vector register (16 with AVX-512, 8 with AVX). A value of the network is
//   then one register, an activation plane is an array [channel][row][column] of registers, and no arithmetic ever crosses lanes:
//   no shuffles, no odd sizes, and each image's result is independent of its neighbours, of its place and of the thread.
// * A block of W images goes through the whole network, forward and back, before the next one starts: everything (about
//   900 kB) stays in the second-level cache. PyTorch sends each layer of the whole batch through main memory.
// * A convolution computes a tile of outputs at a time, some pixels by some channels, held in registers (acc). One loaded weight
//   serves all pixels of the tile and one loaded pixel all channels, so that loads are rarer than multiply-adds.
//   The loops over a tile are unrolled at compile time (times<N>), as registers have no index.
// * tanh is a rational function, off by at most 6 units in the last place (4e-7); its derivative 1 - t^2 is stored in place of t.
// * There is one instance of each function for all uses, because the first reader of a notebook waits for the compiler.
//
// One walk
// --------
// Each lane carries one image and its own step number t. Per round: logits of z_t; landmarks (is it right, first wrong, last
// right); grad_z of the objective; z_{t+1}. A lane that has finished (t = K or, with `stop`, its first_wrong was found) takes the
// next image that waits. The iterate before is kept in a second buffer, as it is "the last right one" only in hindsight.
//
// The gradient of a pooled value reaches four pixels, so backward multiplies it by 1/4 and by each stored 1 - t^2.
// Gradients with respect to parameters (Sums) sum over images: convolutions keep one sum a lane and add the lanes at
// the end; dense layers transpose their inputs and use the lanes for columns. Each part of the batch (as many as threads, equal
// ranges of blocks) has its own sums, which are added in order: the same number of threads gives the same bits.
//
// No error is thrown out of here: every door returns 0, or 1 when memory ran out.

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include <pthread.h>

#define INLINE __attribute__((always_inline))

// ---------------------------------------------------------------------------------------------------------------- vectors

#if defined(__AVX512F__)
constexpr int W = 16;
constexpr bool WIDE = true;  // 32 registers, else 16
#elif defined(__AVX__)
constexpr int W = 8;
constexpr bool WIDE = false;
#else
constexpr int W = 4;
constexpr bool WIDE = false;
#endif
typedef float V __attribute__((vector_size(4 * W), may_alias));
typedef int32_t I __attribute__((vector_size(4 * W), may_alias));

template <class F, int... i>
inline INLINE void times_(F&& f, std::integer_sequence<int, i...>) {
    (f(std::integral_constant<int, i>{}), ...);
}
template <int N, class F>
inline INLINE void times(F&& f) {  // f(0) ... f(N - 1) with compile-time indices
    times_(f, std::make_integer_sequence<int, N>{});
}
#define EACH(i) [&](auto i) INLINE

inline V all(float a) { return a - V{}; }
inline I all(int32_t a) { return a - I{}; }
inline V max(V a, V b) { return a > b ? a : b; }  // b where either is NaN
inline V min(V a, V b) { return a < b ? a : b; }

// tanh x = x P(x^2) / Q(x^2): a minimax fit of the ratio on |x| <= 9, beyond which tanh is 1 in this precision.
inline INLINE V tanh(V x) {
    x = max(all(-9.f), min(all(9.f), x));
    const V u = x * x;
    V p = -1.2202288e-11f * u + 3.0583432e-08f;
    p = p * u + 2.8006804e-05f;
    p = p * u + 3.8682957e-03f;
    p = p * u + 1.3679890e-01f;
    p = p * u + 1.0f;
    V q = 1.2873206e-06f * u + 3.9385743e-04f;
    q = q * u + 2.7245722e-02f;
    q = q * u + 4.7013222e-01f;
    q = q * u + 1.0f;
    return x * p / q;
}

// exp x for x <= 0: 2^n exp(r) with |r| <= log(2) / 2; 0 below the smallest normal number.
inline INLINE V exp(V x) {
    const V y = max(all(-87.f), x);  // in this order NaN stays NaN
    const V n = (y * 1.44269504f + 12582912.f) - 12582912.f;  // rounds: 1.5 * 2^23 leaves no room for a fraction
    const V r = (y - n * 0.693145752f) - n * 1.42860677e-06f;
    V p = 1.3888889e-03f * r + 8.3333333e-03f;
    p = p * r + 4.1666667e-02f;
    p = p * r + 1.6666667e-01f;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    const I scale = (__builtin_convertvector(n, I) + 127) << 23;
    V power;
    std::memcpy(&power, &scale, sizeof power);
    return x < -87.f ? all(0.f) : p * power;
}

// ---------------------------------------------------------------------------------------------------------------- the network

constexpr int SIDE = 32, PIXELS = SIDE * SIDE;
constexpr int C1 = 6, S1 = 28, C2 = 16, S2 = 10, P1 = 14, P2 = 5, N2 = C2 * P2 * P2, N3 = 120, N4 = 84;

struct Net {  // the parameters, in PyTorch's order and layout
    const float *w1, *b1, *w2, *b2, *w3, *b3, *w4, *b4, *w5, *b5;
    int channels, classes;
    Net(const float* const* p, int channels, int classes)
        : w1(p[0]), b1(p[1]), w2(p[2]), b2(p[3]), w3(p[4]), b3(p[5]), w4(p[6]), b4(p[7]), w5(p[8]), b5(p[9]), channels(channels), classes(classes) {}
};

struct Kept {  // what backward needs of a forward pass
    V d1[C1 * S1 * S1];  // 1 - t^2 of the first convolution
    V p1[C1 * P1 * P1];
    V d2[C2 * S2 * S2];
    V p2[N2];
    V h3[N3], h4[N4];
};

// acc[c][p] += sum over input channels and the 5 x 5 window: P neighbouring pixels of C channels. `in` points at the first window.
template <int P, int C, int WIDTH, int PLANE>
inline INLINE void convolve(V (&acc)[C][P], const V* in, int n_in, const float* w) {
    const int next = n_in * 25;  // weights of the next output channel
    for (int i = 0; i < n_in; ++i, in += PLANE, w += 25)
        for (int ky = 0; ky < 5; ++ky) {
            const V* row = in + ky * WIDTH;
            const float* wk = w + ky * 5;
            times<5>(EACH(kx) { times<C>(EACH(c) {
                const V weight = all(wk[c * next + kx]);
                times<P>(EACH(p) { acc[c][p] += weight * row[kx + p]; });
            }); });
        }
}

// One convolution, tanh, 2 x 2 mean: in [n_in][SIZE + 4]^2 -> d [C_OUT][SIZE]^2 (1 - t^2), pooled [C_OUT][SIZE / 2]^2.
template <int C_OUT, int SIZE, int P, int C>
inline void conv_tanh_pool(const V* in, int n_in, const float* w, const float* b, V* d, V* pooled) {
    constexpr int WIDTH = SIZE + 4, HALF = SIZE / 2;
    V t[C_OUT][2][SIZE];
    for (int y = 0; y < SIZE; ++y) {
        for (int x = 0; x < SIZE; x += P)
            for (int c0 = 0; c0 < C_OUT; c0 += C) {
                V acc[C][P];
                times<C>(EACH(c) { times<P>(EACH(p) { acc[c][p] = all(b[c0 + c]); }); });
                convolve<P, C, WIDTH, WIDTH * WIDTH>(acc, in + y * WIDTH + x, n_in, w + c0 * n_in * 25);
                times<C>(EACH(c) { times<P>(EACH(p) {
                    const V a = tanh(acc[c][p]);
                    t[c0 + c][y & 1][x + p] = a;
                    d[((c0 + c) * SIZE + y) * SIZE + x + p] = 1.f - a * a;
                }); });
            }
        if (y & 1)
            for (int c = 0; c < C_OUT; ++c)
                for (int x = 0; x < HALF; ++x)
                    pooled[(c * HALF + y / 2) * HALF + x] =
                        0.25f * ((t[c][0][2 * x] + t[c][0][2 * x + 1]) + (t[c][1][2 * x] + t[c][1][2 * x + 1]));
    }
}

// out_o = b_o + sum_i w_oi in_i, then tanh; T outputs at a time
template <int N_IN, int T, bool TANH>
inline void dense_tile(const V* in, const float* w, const float* b, V* out) {
    V acc[T];
    times<T>(EACH(o) { acc[o] = all(b[o]); });
    for (int i = 0; i < N_IN; ++i) {
        const V a = in[i];
        times<T>(EACH(o) { acc[o] += w[o * N_IN + i] * a; });
    }
    times<T>(EACH(o) { out[o] = TANH ? tanh(acc[o]) : acc[o]; });
}
template <int N_IN, bool TANH>
inline void dense(const V* in, const float* w, const float* b, V* out, int n_out) {
    constexpr int T = 10;
    int o = 0;
    for (; o + T <= n_out; o += T) dense_tile<N_IN, T, TANH>(in, w + o * N_IN, b + o, out + o);
    for (; o + 2 <= n_out; o += 2) dense_tile<N_IN, 2, TANH>(in, w + o * N_IN, b + o, out + o);
    for (; o < n_out; ++o) dense_tile<N_IN, 1, TANH>(in, w + o * N_IN, b + o, out + o);
}

void forward(const Net& n, const V* x, Kept& k, V* logits) {
    conv_tanh_pool<C1, S1, 4, WIDE ? 6 : 3>(x, n.channels, n.w1, n.b1, k.d1, k.p1);
    conv_tanh_pool<C2, S2, 5, WIDE ? 4 : 2>(k.p1, C1, n.w2, n.b2, k.d2, k.p2);
    dense<N2, true>(k.p2, n.w3, n.b3, k.h3, N3);
    dense<N3, true>(k.h3, n.w4, n.b4, k.h4, N4);
    dense<N4, false>(k.h4, n.w5, n.b5, logits, n.classes);
}

// ---------------------------------------------------------------------------------------------------------------- backward

// finish(i, sum_o w_oi g_o) for each input i of a dense layer
template <int N_IN, class F>
inline void dense_back(const V* g, const float* w, int n_out, F finish) {
    constexpr int T = 10, REST = N_IN % T;
    for (int i = 0; i + T <= N_IN; i += T) {
        V acc[T] = {};
        for (int o = 0; o < n_out; ++o) times<T>(EACH(j) { acc[j] += w[o * N_IN + i + j] * g[o]; });
        times<T>(EACH(j) { finish(i + j, acc[j]); });
    }
    for (int i = N_IN - REST; i < N_IN; ++i) {
        V acc = {};
        for (int o = 0; o < n_out; ++o) acc += w[o * N_IN + i] * g[o];
        finish(i, acc);
    }
}

// The gradient g of a pooled pixel reaches the four pixels under it, through tanh: out = g / 4 (1 - t^2).
template <int SIZE>
inline INLINE void unpool(const V* d, V* out, int c, int y, int x, V g) {
    const int at = (c * SIZE + 2 * y) * SIZE + 2 * x;
    g *= 0.25f;
    times<2>(EACH(i) { times<2>(EACH(j) { out[at + i * SIZE + j] = g * d[at + i * SIZE + j]; }); });
}

// The second convolution, backward: a whole row of C input channels at a time.
template <int C>
inline void conv2_back(const Net& n, const V* g2, const V* d1, V* g1) {
    for (int y = 0; y < P1; ++y)
        for (int c0 = 0; c0 < C1; c0 += C) {
            V acc[C][P1] = {};
            for (int r = std::max(0, y - 4); r <= std::min(S2 - 1, y); ++r)
                for (int o = 0; o < C2; ++o) {
                    const V* g = g2 + (o * S2 + r) * S2;
                    const float* w = n.w2 + (o * C1 + c0) * 25 + (y - r) * 5;
                    times<5>(EACH(kx) { times<S2>(EACH(x) { times<C>(EACH(c) { acc[c][x + kx] += w[c * 25 + kx] * g[x]; }); }); });
                }
            times<C>(EACH(c) { times<P1>(EACH(x) { unpool<S1>(d1, g1, c0 + c, y, x, acc[c][x]); }); });
        }
}

// dlogits -> gradients of every layer's sum. g.g1 may be k.d1 itself, g.g2 k.d2: each value is read before it is overwritten.
void backward(const Net& n, const V* glogits, const Kept& k, V* g1, V* g2, V* g3, V* g4) {
    dense_back<N4>(glogits, n.w5, n.classes, [&](int i, V g) INLINE { g4[i] = g * (1.f - k.h4[i] * k.h4[i]); });
    dense_back<N3>(g4, n.w4, N4, [&](int i, V g) INLINE { g3[i] = g * (1.f - k.h3[i] * k.h3[i]); });
    dense_back<N2>(g3, n.w3, N3, [&](int i, V g) INLINE { unpool<S2>(k.d2, g2, i / 25, i / 5 % 5, i % 5, g); });
    conv2_back<WIDE ? 2 : 1>(n, g2, k.d1, g1);
}

// The first convolution, backward. Tiles are two rows of S pixels; LO .. HI are the columns of g1 that exist, counted from the
// tile's first; TOP and BOTTOM say which of the two rows the row r of g1 reaches.
template <int S, int LO, int HI, bool TOP, bool BOTTOM>
inline INLINE void conv1_back_row(V (&acc)[2][S], const V* g, const float* w, int next, int ky) {
    for (int o = 0; o < C1; ++o, g += S1 * S1, w += next) {
        const float *top = w + ky * 5, *bottom = w + ky * 5 + 5;
        times<5>(EACH(kx) { times<S>(EACH(p) {
            if constexpr (LO <= p - kx && p - kx <= HI) {
                if (TOP) acc[0][p] += top[kx] * g[p - kx];
                if (BOTTOM) acc[1][p] += bottom[kx] * g[p - kx];
            }
        }); });
    }
}
template <int S, int LO, int HI>
inline void conv1_back_tile(const V* g1, const float* w, int next, int y, int x, V* gx) {
    V acc[2][S] = {};
    const V* g = g1 + x;
    if (y >= 4) conv1_back_row<S, LO, HI, true, false>(acc, g + (y - 4) * S1, w, next, 4);
    for (int r = std::max(0, y - 3); r <= std::min(S1 - 1, y); ++r) conv1_back_row<S, LO, HI, true, true>(acc, g + r * S1, w, next, y - r);
    if (y + 1 < S1) conv1_back_row<S, LO, HI, false, true>(acc, g + (y + 1) * S1, w, next, -1);
    times<2>(EACH(i) { times<S>(EACH(p) { gx[(y + i) * SIDE + x + p] = acc[i][p]; }); });
}
void conv1_back(const Net& n, const V* g1, V* gx) {
    constexpr int S = WIDE ? 8 : 4;
    for (int c = 0; c < n.channels; ++c, gx += PIXELS) {
        const float* w = n.w1 + c * 25;
        const int next = n.channels * 25;
        for (int y = 0; y < SIDE; y += 2) {
            conv1_back_tile<S, 0, S - 1>(g1, w, next, y, 0, gx);
            for (int x = S; x < SIDE - S; x += S) conv1_back_tile<S, -4, S - 1>(g1, w, next, y, x, gx);
            conv1_back_tile<S, -4, S - 5>(g1, w, next, y, SIDE - S, gx);
        }
    }
}

// ---------------------------------------------------------------------------------------------------------------- memory, threads

struct Workspace {  // what one thread needs. Kept for the next call: fresh pages are slow.
    Kept kept;
    V g1[C1 * S1 * S1], g2[C2 * S2 * S2], g3[N3], g4[N4];
    V *x, *z[2], *noise, *logits, *glogits, *clean;
    size_t room;  // registers that follow this struct in memory

    static Workspace* make(int channels, int classes) {
        const size_t image = size_t(channels) * PIXELS, room = 4 * image + 3 * size_t(classes);
        Workspace* s = spare(nullptr);
        if (!s || s->room < room) {
            std::free(s);
            s = static_cast<Workspace*>(std::aligned_alloc(64, sizeof(Workspace) + room * sizeof(V)));
            if (!s) return nullptr;
            s->room = room;
        }
        V* at = reinterpret_cast<V*>(s + 1);
        for (V** q : {&s->x, &s->z[0], &s->z[1], &s->noise}) *q = at, at += image;
        for (V** q : {&s->logits, &s->glogits, &s->clean}) *q = at, at += classes;
        return s;
    }
    static Workspace* spare(Workspace* back) {  // put one back, or (nullptr) ask for one
        static Workspace* shelf[8] = {};
        static std::atomic_flag busy = ATOMIC_FLAG_INIT;
        if (busy.test_and_set()) return std::free(back), nullptr;  // never waits: after a fork it may have lost its owner
        Workspace** at = std::find_if(shelf, shelf + 8, [&](Workspace* s) { return !s == !!back; });
        if (at != shelf + 8) std::swap(*at, back);
        busy.clear();
        return back;
    }
    struct Return {
        void operator()(Workspace* s) const { std::free(spare(s)); }
    };
};
using Space = std::unique_ptr<Workspace, Workspace::Return>;

// GOMP_parallel(f, data, threads, 0) of the OpenMP that PyTorch uses. Threads of our own would fight with PyTorch's for the cores,
// as those spin for some milliseconds after each of its operations. Not after a fork: OpenMP's threads do not survive one.
using Pool = void (*)(void (*)(void*), void*, unsigned, unsigned);
Pool pool = nullptr;

// f(part) for part = 0 .. parts - 1, on as many threads as are to be had
template <class F>
void parallel(int parts, F f) {
    struct Work {
        F& f;
        const int parts;
        std::atomic<int> next{0};
        static void run(void* work) {
            Work& w = *static_cast<Work*>(work);
            for (int part; (part = w.next++) < w.parts;) w.f(part);
        }
    } work{f, parts};
    if (parts > 1 && pool) return pool(Work::run, &work, unsigned(parts), 0);
    std::vector<std::thread> threads;
    try {
        for (int i = 1; i < parts; ++i) threads.emplace_back(Work::run, &work);
    } catch (...) {  // no more threads: those that are there do all parts
    }
    Work::run(&work);
    for (auto& t : threads) t.join();
}

inline void put(V* block, int lane, const float* values, size_t n) {
    float* to = reinterpret_cast<float*>(block) + lane;
    for (size_t i = 0; i < n; ++i) to[i * W] = values[i];
}
inline void take(const V* block, int lane, float* values, size_t n) {
    const float* from = reinterpret_cast<const float*>(block) + lane;
    for (size_t i = 0; i < n; ++i) values[i] = from[i * W];
}
// The same for all lanes, image from + l in lane l, W values at a time: each cache line is read and written once.
inline void put_block(V* block, const float* values, int64_t from, int64_t n, size_t size) {
    for (size_t i = 0; i < size; i += W)
        for (int l = 0; l < W; ++l)
            for (size_t j = i; j < std::min(i + W, size); ++j) block[j][l] = from + l < n ? values[(from + l) * size + j] : 0.f;
}
inline void take_block(const V* block, float* values, int64_t from, int64_t n, size_t size) {
    for (size_t i = 0; i < size; i += W)
        for (int l = 0; l < W && from + l < n; ++l)
            for (size_t j = i; j < std::min(i + W, size); ++j) values[(from + l) * size + j] = block[j][l];
}

// ---------------------------------------------------------------------------------------------------------------- the walk

enum Objective { CE, KL, MARGIN };

// The label of the largest logit (the first of equals; NaN counts as the largest, as in PyTorch)
inline I argmax(int classes, const V* z) {
    V best = z[0];
    I label = all(0);
    for (int j = 1; j < classes; ++j) {
        const I better = (z[j] > best) | ((z[j] != z[j]) & (best == best));
        best = better ? z[j] : best;
        label = better ? all(j) : label;
    }
    return label;
}

// d/dz_j (max_{i != y} z_i - z_y); equals share, as in PyTorch
inline void margin_back(int classes, const V* z, I y, V* g) {
    V best = all(-__builtin_inff()), ties = all(0.f);
    for (int j = 0; j < classes; ++j) best = (y != j) & (z[j] > best) ? z[j] : best;
    for (int j = 0; j < classes; ++j) ties += (y != j) & (z[j] == best) ? all(1.f) : all(0.f);
    for (int j = 0; j < classes; ++j) g[j] = y == j ? all(-1.f) : (z[j] == best ? 1.f / ties : all(0.f));
}

// d/dz_j of CE(z, y) or KL(q || p(z)) is p_j - q_j, where q is e_y for CE. These sum to 0, so the entry of the label `big`, where p
// and q are near 1 and would cancel, is computed as minus the sum of the others.
inline void softmax_back(int classes, const V* z, I big, const V* q, V* g) {
    V top = z[0], sum = all(0.f), others = all(0.f);
    for (int j = 1; j < classes; ++j) top = max(top, z[j]);
    for (int j = 0; j < classes; ++j) sum += g[j] = exp(z[j] - top);
    for (int j = 0; j < classes; ++j) {
        g[j] = q ? g[j] / sum - q[j] : g[j] / sum;
        others += big == j ? all(0.f) : g[j];
    }
    for (int j = 0; j < classes; ++j) g[j] = big == j ? -others : g[j];
}

struct WalkCall {  // mirrors _WalkCall in __init__.py
    const float* const* parameters;
    const float *x, *z0, *noise, *clean, *eps, *step_size;
    const int64_t* y;
    float *last, *first_wrong, *last_right;
    int64_t *n_right, *t_wrong;
    int64_t n, steps, extra;
    int32_t channels, classes, objective, stop, threads;
};

struct Walker {
    const WalkCall& c;
    const Net net;
    std::atomic<int64_t>& next;
    Workspace& s;
    const size_t size;
    int64_t image[W], t[W], n_wrong[W];
    I y;
    V eps, step;
    int now = 0;

    Walker(const WalkCall& c, std::atomic<int64_t>& next, Workspace& s)
        : c(c), net(c.parameters, c.channels, c.classes), next(next), s(s), size(size_t(c.channels) * PIXELS), y{}, eps{}, step{} {}

    bool fill(int l) {  // the next waiting image into lane l
        const int64_t i = next < c.n ? next++ : c.n;
        if (i >= c.n) return false;
        image[l] = i;
        t[l] = n_wrong[l] = 0;
        y[l] = int32_t(c.y[i]);
        eps[l] = c.eps[i];
        step[l] = c.step_size[i];
        put(s.x, l, c.x + i * size, size);
        put(s.z[now], l, c.z0 + i * size, size);
        if (c.objective == KL) put(s.clean, l, c.clean + i * c.classes, c.classes);
        c.n_right[i] = 0;
        c.t_wrong[i] = c.steps;
        return true;
    }

    void finish(int l) {  // z is final
        const int64_t i = image[l];
        take(s.z[now], l, c.last + i * size, size);
        if (n_wrong[l] <= c.extra) take(s.z[now], l, c.first_wrong + i * size, size);
        image[l] = -1;
    }

    void look(int l, bool right) {  // landmarks of z_t
        const int64_t i = image[l];
        c.n_right[i] += right;
        if (!right) {
            if (++n_wrong[l] == 1) {
                c.t_wrong[i] = t[l];
                take(s.z[t[l] ? 1 - now : now], l, c.last_right + i * size, size);
            }
            if (n_wrong[l] == c.extra + 1) take(s.z[now], l, c.first_wrong + i * size, size);
            if (c.stop && n_wrong[l] > c.extra) return finish(l);
        }
        if (t[l] == c.steps - 1 && !n_wrong[l]) take(s.z[now], l, c.last_right + i * size, size);
    }

    void move() {  // z_{t+1} = Proj_B(x, eps)( z_t + a sign(gradient) + noise ), in the box
        const V *x = s.x, *z = s.z[now], *noise = s.noise;
        V* to = s.z[1 - now];  // the gradient, then z_{t+1} in its place
        conv1_back(net, s.kept.d1, to);
        for (size_t i = 0; i < size; ++i) {
            V v = z[i] + (to[i] > 0.f ? step : (to[i] < 0.f ? -step : all(0.f)));
            if (c.noise) v += noise[i];
            v = min(max(v, x[i] - eps), x[i] + eps);
            to[i] = min(max(v, all(0.f)), all(1.f));
        }
        now = 1 - now;
    }

    void round() {  // one step of every lane
        forward(net, s.z[now], s.kept, s.logits);
        const I label = argmax(c.classes, s.logits);
        for (int l = 0; l < W; ++l)
            if (image[l] >= 0) look(l, label[l] == y[l]);
        if (c.objective == MARGIN) margin_back(c.classes, s.logits, y, s.glogits);
        else softmax_back(c.classes, s.logits, c.objective == KL ? label : y, c.objective == KL ? s.clean : nullptr, s.glogits);
        backward(net, s.glogits, s.kept, s.kept.d1, s.kept.d2, s.g3, s.g4);
        if (c.noise)
            for (int l = 0; l < W; ++l)
                if (image[l] >= 0) put(s.noise, l, c.noise + (t[l] * c.n + image[l]) * size, size);
        move();
    }

    void run() {
        std::memset(s.x, 0, size * sizeof(V));  // lanes without an image hold zeros: defined, and never slow
        std::memset(s.z[now], 0, size * sizeof(V));
        for (int l = 0; l < W; ++l) image[l] = -1, t[l] = n_wrong[l] = 0;
        for (;;) {
            bool any = false;
            for (int l = 0; l < W; ++l) any |= image[l] >= 0 || fill(l);
            if (!any) return;
            round();
            for (int l = 0; l < W; ++l)
                if (image[l] >= 0 && ++t[l] == c.steps) finish(l);
        }
    }
};

// ---------------------------------------------------------------------------------------------------------------- training

constexpr int padded(int n) { return (n + W - 1) / W * W; }

// sums[c][kx] += sum over ROWS rows of SIZE pixels of g_c in(shifted by kx), for C output channels
template <int C, int SIZE, int ROWS>
inline void conv_weights(const V* g, const V* in, V* sums, int next) {
    V acc[C][5];
    times<C>(EACH(c) { times<5>(EACH(k) { acc[c][k] = sums[c * next + k]; }); });
    for (int y = 0; y < ROWS; ++y, g += SIZE, in += SIZE + 4)
        for (int x = 0; x < SIZE; ++x)
            times<C>(EACH(c) {
                const V gc = g[c * SIZE * SIZE + x];
                times<5>(EACH(k) { acc[c][k] += gc * in[x + k]; });
            });
    times<C>(EACH(c) { times<5>(EACH(k) { sums[c * next + k] = acc[c][k]; }); });
}

// out[o][i] += sum over lanes l of g_o(l) in_i(l), a tile of O rows by N registers. `rows` holds in transposed: [lane][padded].
template <int O, int N>
inline void dense_weights_tile(const float* g, const float* rows, int width, float* out) {
    V acc[O][N];
    times<O>(EACH(o) { times<N>(EACH(v) { acc[o][v] = *reinterpret_cast<V*>(out + o * width + v * W); }); });
    for (int l = 0; l < W; ++l)
        times<O>(EACH(o) { times<N>(EACH(v) { acc[o][v] += g[o * W + l] * *reinterpret_cast<const V*>(rows + l * width + v * W); }); });
    times<O>(EACH(o) { times<N>(EACH(v) { *reinterpret_cast<V*>(out + o * width + v * W) = acc[o][v]; }); });
}

struct Sums {  // one thread's gradients of the parameters
    V w2[C2 * C1 * 25], b1[C1], b2[C2];
    alignas(64) float w3[N3 * padded(N2)], w4[N4 * padded(N3)];
    alignas(64) float rows[W * padded(N2)];
    float b3[N3], b4[N4];
    V* w1;  // [C1][channels][25]
    float *w5, *b5;

    static Sums* make(int channels, int classes) {
        const size_t more = sizeof(V) * C1 * channels * 25 + sizeof(float) * padded(classes) * (padded(N4) + 1), size = sizeof(Sums) + more;
        Sums* s = static_cast<Sums*>(std::aligned_alloc(64, (size + 63) / 64 * 64));
        if (!s) return nullptr;
        std::memset(static_cast<void*>(s), 0, size);
        s->w1 = reinterpret_cast<V*>(s + 1);
        s->w5 = reinterpret_cast<float*>(s->w1 + C1 * channels * 25);
        s->b5 = s->w5 + padded(classes) * padded(N4);
        return s;
    }

    void conv1(const V* x, const V* g, int channels) {  // row by row, so that the row of g is read from main memory once
        constexpr int C = WIDE ? 3 : 2;
        for (int y = 0; y < S1; ++y)
            for (int o = 0; o < C1; o += C) {
                const V* row = g + (o * S1 + y) * S1;
                for (int i = 0; i < S1; ++i)
                    times<C>(EACH(c) { b1[o + c] += row[c * S1 * S1 + i]; });
                for (int i = 0; i < channels; ++i)
                    for (int ky = 0; ky < 5; ++ky)
                        conv_weights<C, S1, 1>(row, x + i * PIXELS + (y + ky) * SIDE, w1 + (o * channels + i) * 25 + ky * 5, channels * 25);
            }
    }
    void conv2(const V* p1, const V* g) {
        constexpr int C = WIDE ? 4 : 2;
        for (int o = 0; o < C2; o += C) {
            for (int i = 0; i < S2 * S2; ++i)
                times<C>(EACH(c) { b2[o + c] += g[(o + c) * S2 * S2 + i]; });
            for (int i = 0; i < C1; ++i)
                for (int ky = 0; ky < 5; ++ky)
                    conv_weights<C, S2, S2>(g + o * S2 * S2, p1 + (i * P1 + ky) * P1, w2 + (o * C1 + i) * 25 + ky * 5, C1 * 25);
        }
    }
    template <int N_IN>
    void dense(const V* in, const V* g, int n_out, float* w, float* b) {
        constexpr int WIDTH = padded(N_IN), N = WIDE ? 5 : 2;
        const float* gs = reinterpret_cast<const float*>(g);
        for (int i = 0; i < N_IN; ++i)
            for (int l = 0; l < W; ++l) rows[l * WIDTH + i] = in[i][l];
        for (int o = 0; o < n_out; ++o)
            for (int l = 0; l < W; ++l) b[o] += gs[o * W + l];
        for (; n_out >= 4; n_out -= 4, gs += 4 * W, w += 4 * WIDTH) {
            int v = 0;
            for (; v + N * W <= WIDTH; v += N * W) dense_weights_tile<4, N>(gs, rows + v, WIDTH, w + v);
            for (; v < WIDTH; v += W) dense_weights_tile<4, 1>(gs, rows + v, WIDTH, w + v);
        }
        for (; n_out > 0; --n_out, gs += W, w += WIDTH)
            for (int v = 0; v < WIDTH; v += W) dense_weights_tile<1, 1>(gs, rows + v, WIDTH, w + v);
    }

    float* add_lanes(const V* from, int n, float* to) const {
        for (int i = 0; i < n; ++i)
            for (int l = 0; l < W; ++l) to[i] += from[i][l];
        return to + n;
    }
    float* add_rows(const float* from, int rows, int n, int width, float* to) const {
        for (int r = 0; r < rows; ++r)
            for (int i = 0; i < n; ++i) to[r * n + i] += from[r * width + i];
        return to + rows * n;
    }
    void add_to(float* out, int channels, int classes) const {  // in the order of model.parameters()
        out = add_lanes(w1, C1 * channels * 25, out);
        out = add_lanes(b1, C1, out);
        out = add_lanes(w2, C2 * C1 * 25, out);
        out = add_lanes(b2, C2, out);
        out = add_rows(w3, N3, N2, padded(N2), out);
        out = add_rows(b3, 1, N3, N3, out);
        out = add_rows(w4, N4, N3, padded(N3), out);
        out = add_rows(b4, 1, N4, N4, out);
        out = add_rows(w5, classes, N4, padded(N4), out);
        add_rows(b5, 1, classes, classes, out);
    }
};
struct Free {
    void operator()(Sums* s) const { std::free(s); }
};

struct PassCall {  // mirrors _PassCall in __init__.py; null where not wanted
    const float* const* parameters;
    const float *x, *glogits;
    float *logits, *gx, *gparameters;
    Kept* kept;  // one a block
    int64_t n;
    int32_t channels, classes, threads;
};

void pass_forward(const PassCall& c, Workspace& s, int64_t block) {
    const Net net(c.parameters, c.channels, c.classes);
    put_block(s.x, c.x, block * W, c.n, size_t(c.channels) * PIXELS);
    forward(net, s.x, c.kept ? c.kept[block] : s.kept, s.logits);
    take_block(s.logits, c.logits, block * W, c.n, c.classes);
}

void pass_backward(const PassCall& c, Workspace& s, Sums* sums, int64_t block) {
    const Net net(c.parameters, c.channels, c.classes);
    const size_t size = size_t(c.channels) * PIXELS;
    const Kept& k = c.kept[block];
    put_block(s.glogits, c.glogits, block * W, c.n, c.classes);
    backward(net, s.glogits, k, s.g1, s.g2, s.g3, s.g4);
    if (c.gx) {
        conv1_back(net, s.g1, s.z[0]);
        take_block(s.z[0], c.gx, block * W, c.n, size);
    }
    if (!sums) return;
    put_block(s.x, c.x, block * W, c.n, size);
    sums->conv1(s.x, s.g1, c.channels);
    sums->conv2(k.p1, s.g2);
    sums->dense<N2>(k.p2, s.g3, N3, sums->w3, sums->b3);
    sums->dense<N3>(k.h3, s.g4, N4, sums->w4, sums->b4);
    sums->dense<N4>(k.h4, s.glogits, c.classes, sums->w5, sums->b5);
}

// ------------------------------------------------------------------------------------- batch normalisation, then ReLU

// Both and their derivative in one pass over memory each, where PyTorch makes two and three: a residual network on a CPU waits for
// memory longer than it multiplies. Channels lie last, a multiple of W; values are float32 or bfloat16, sums float32.
struct NormCall {  // mirrors _NormCall in norm.py
    const float *scale, *shift;  // [channels]
    const void *x, *a, *g, *past;  // [n, channels]; past may be null
    void* out;  // a from x; or, where g is given, grad_x from a, grad_a = g and the gradient that comes past the two
    int64_t n;
    int32_t channels, half, threads;
};

typedef uint32_t U __attribute__((vector_size(4 * W), may_alias));
typedef uint16_t H __attribute__((vector_size(2 * W), may_alias));

inline V load(const float* p) {
    V v;
    std::memcpy(&v, p, sizeof v);
    return v;
}
inline void store(float* p, V v) { std::memcpy(p, &v, sizeof v); }
inline V load(const uint16_t* p) {  // bfloat16 is the upper half of a float32
    H h;
    std::memcpy(&h, p, sizeof h);
    return (V)(__builtin_convertvector(h, U) << 16);
}
inline void store(uint16_t* p, V v) {  // rounded to the nearest, ties to even; NaN stays NaN
    const U bits = (U)v, rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
    const U kept = (v == v) ? rounded : (bits | 0x400000u);
    const H h = __builtin_convertvector(kept >> 16, H);
    std::memcpy(p, &h, sizeof h);
}

template <class T>
void relu_norm(const NormCall& c, int64_t from, int64_t to) {
    const T *x = (const T*)c.x, *a = (const T*)c.a, *g = (const T*)c.g, *past = (const T*)c.past;
    T* out = (T*)c.out;
    const int channels = c.channels;
    for (int64_t k = from * channels; k < to * channels; k += channels)
        for (int j = 0; j < channels; j += W) {
            const V scale = load(c.scale + j);
            if (g) {  // grad_x = scale grad_a where a > 0, and what comes past
                V d = load(a + k + j) <= 0.f ? V{} : scale * load(g + k + j);
                if (past) d += load(past + k + j);
                store(out + k + j, d);
            } else {  // a = max(scale x + shift, 0); NaN stays NaN
                const V v = scale * load(x + k + j) + load(c.shift + j);
                store(out + k + j, v < 0.f ? V{} : v);
            }
        }
}

// ---------------------------------------------------------------------------------------------------------------- the doors

extern "C" {

int lenet_lanes() { return W; }

void lenet_pool(Pool p) {
    static const int once = pthread_atfork(nullptr, nullptr, [] { pool = nullptr; });
    pool = once ? nullptr : p;
}
int64_t lenet_kept_size() { return sizeof(Kept); }

int lenet_walk(const WalkCall* call) {
    std::atomic<int64_t> next{0};
    std::atomic<int> failed{0};
    parallel(int(std::min<int64_t>(call->threads, (call->n + W - 1) / W)), [&](int) {
        const Space s(Workspace::make(call->channels, call->classes));
        if (s) Walker(*call, next, *s).run();
        else failed = 1;
    });
    return failed;
}

int lenet_pass(const PassCall* call) {  // backward where glogits are given, else forward
    const int64_t blocks = (call->n + W - 1) / W;
    const int parts = int(std::min<int64_t>(call->threads, blocks));
    std::vector<std::unique_ptr<Sums, Free>> sums(parts);
    std::atomic<int> failed{0};
    parallel(parts, [&](int part) {
        const Space s(Workspace::make(call->channels, call->classes));
        if (call->gparameters) sums[part].reset(Sums::make(call->channels, call->classes));
        if (!s || (call->gparameters && !sums[part])) return void(failed = 1);
        for (int64_t b = blocks * part / parts; b < blocks * (part + 1) / parts; ++b)
            if (call->glogits) pass_backward(*call, *s, sums[part].get(), b);
            else pass_forward(*call, *s, b);
    });
    if (failed || !call->gparameters) return failed;
    for (const auto& s : sums) s->add_to(call->gparameters, call->channels, call->classes);  // zeros before
    return 0;
}

int relu_of_norm(const NormCall* call) {
    const int parts = int(std::min<int64_t>(call->threads, call->n));
    parallel(parts, [&](int part) {
        const int64_t from = call->n * part / parts, to = call->n * (part + 1) / parts;
        if (call->half) relu_norm<uint16_t>(*call, from, to);
        else relu_norm<float>(*call, from, to);
    });
    return 0;
}
}
