// peak.cu - what this device can do, measured now: bf16 products, fp32 arithmetic, reading memory.
// Work is doubled until it takes long enough to be timed, so that a slow device (the emulator) is
// not kept busy for minutes; the best of a few runs counts.
#include "kernels/cuda/device.h"
#include "kernels/cuda/families.h"
#include "kernels/cuda/ptx.cuh"

enum { BLOCK = 256, CHAINS = 8, STEPS = 64, RUNS = 5 };
static const double LONG_ENOUGH = 5e-4;  // seconds: of reading, some GB on the fastest device

// 2 * CHAINS * STEPS * rounds operations per thread, on independent chains.
__global__ void fma_kernel(float *out, int rounds, float factor) {
    float x[CHAINS];
#pragma unroll
    for (int c = 0; c < CHAINS; c++)
        x[c] = (float)(threadIdx.x + c);
    for (int r = 0; r < rounds; r++) {
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
#pragma unroll
            for (int c = 0; c < CHAINS; c++)
                x[c] = x[c] * factor + 1.0f;
        }
    }
    float sum = 0.0f;
#pragma unroll
    for (int c = 0; c < CHAINS; c++)
        sum += x[c];
    if (sum == -1.0f) out[0] = sum;  // never, but the compiler cannot know
}

__global__ void read_kernel(float *out, const float *inp, size_t n) {
    float sum = 0.0f, x[4];
    size_t step = (size_t)gridDim.x * blockDim.x * 4;
    for (size_t i = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) * 4; i < n; i += step) {
        load_vec<4>(x, inp + i);
        sum += (x[0] + x[1]) + (x[2] + x[3]);
    }
    if (sum == -1.0f) out[0] = sum;
}

// One kind of work of a chosen size, on a buffer that the size asks for.
struct Probe {
    const Ops *ops;
    size_t first, last;         // sizes
    size_t (*bytes)(size_t n);  // of the buffer, cleared
    void (*work)(const Probe *p, char *buffer, size_t n);
    cudaEvent_t from, to;
};

static double seconds_of(const Probe *p, char *buffer, size_t n) {
    float ms = 0.0f;
    CUDA_CHECK(cudaEventRecord(p->from, cuda_stream()));
    p->work(p, buffer, n);
    CUDA_CHECK(cudaEventRecord(p->to, cuda_stream()));
    CUDA_CHECK(cudaEventSynchronize(p->to));
    CUDA_CHECK(cudaEventElapsedTime(&ms, p->from, p->to));
    return (double)ms * 1e-3;
}

// The size that takes long enough, and the shortest time that it took.
static double run(Probe *p, size_t *size) {
    double best = INFINITY;
    CUDA_CHECK(cudaEventCreate(&p->from));
    CUDA_CHECK(cudaEventCreate(&p->to));
    for (size_t n = p->first;; n *= 2) {
        char *buffer = static_cast<char *>(p->ops->alloc(p->bytes(n)));
        seconds_of(p, buffer, n);  // warms up
        best = seconds_of(p, buffer, n);
        bool enough = best >= LONG_ENOUGH || n >= p->last;
        for (int i = 1; enough && i < RUNS; i++) {
            double s = seconds_of(p, buffer, n);
            if (s < best) best = s;
        }
        p->ops->free(buffer);
        *size = n;
        if (enough) break;
    }
    CUDA_CHECK(cudaEventDestroy(p->from));
    CUDA_CHECK(cudaEventDestroy(p->to));
    return best;
}

static size_t fma_bytes(size_t) {
    return sizeof(float);
}
static size_t fma_blocks() {
    return 8 * (size_t)cuda_device()->n_sm;
}
static void fma_work(const Probe *, char *buffer, size_t rounds) {
    LAUNCH(fma_kernel, fma_blocks(), BLOCK, 0, cuda_stream())
    (reinterpret_cast<float *>(buffer), (int)rounds, 0.999f);
}

static size_t read_bytes(size_t n) {
    return n;
}
static void read_work(const Probe *, char *buffer, size_t n) {
    float *x = reinterpret_cast<float *>(buffer);
    size_t blocks = min_size(ceil_div(n, 16 * BLOCK), 8 * (size_t)cuda_device()->n_sm);
    LAUNCH(read_kernel, blocks, BLOCK, 0, cuda_stream())(x, x, n / sizeof(float));
}

// Square matrices of n rows: a, b, c.
static size_t product_bytes(size_t n) {
    return 3 * n * n * sizeof(bf16);
}
static void product_work(const Probe *p, char *buffer, size_t n) {
    GemmOp g = {};
    g.M = g.N = g.K = (int)n, g.batch = 1, g.tb = true, g.alpha = 1.0f;
    g.lda = g.ldb = g.ldc = n;
    g.a_type = g.b_type = g.c_type = TYPE_BF16, g.compute = TYPE_BF16;
    size_t matrix = n * n * sizeof(bf16);
    p->ops->gemm(buffer + 2 * matrix, buffer, buffer + matrix, &g);
}

template <typename T> static void measure_peaks_cuda(Peaks *out) {
    Ops ops = {};
    memory_ops<T>(&ops);
    gemm_ops<T>(&ops);
    size_t n;
    Probe fma = {&ops, 1, (size_t)1 << 16, fma_bytes, fma_work, nullptr, nullptr};
    double seconds = run(&fma, &n);
    out->fma_flops = 2.0 * CHAINS * STEPS * (double)(n * fma_blocks() * BLOCK) / seconds;
    // The largest buffer is far larger than any second-level cache.
    Probe read = {&ops, (size_t)1 << 18, (size_t)1 << 31, read_bytes, read_work, nullptr, nullptr};
    seconds = run(&read, &n);
    out->read_bytes = (double)n / seconds;
    Probe product = {&ops, 128, 8192, product_bytes, product_work, nullptr, nullptr};
    seconds = run(&product, &n);
    out->bf16_flops = 2.0 * (double)n * (double)n * (double)n / seconds;
    out->has_bf16 = true;
}

template <typename T> void peak_ops(Ops *o) {
    o->measure_peaks = measure_peaks_cuda<T>;
}
template void peak_ops<float>(Ops *);
template void peak_ops<bf16>(Ops *);
