// embed.cu - token and position embeddings.
// The backward pass sorts the rows by token and sums runs of equal tokens in the order of the rows:
// no atomics, same bits every time. Sorted positions are cut into chunks of CHUNK rows. A run
// inside one chunk is added at once; pieces of longer runs go to scratch, and the chunk in which a
// run starts adds them up.
#include "kernels/cuda/device.h"
#include "kernels/cuda/families.h"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/sort.h"

enum { BLOCK = 256, CHUNK = 32, COLUMN_THREADS = 128 };

template <typename T> struct Embed {
    T *out;
    const int *ids;
    const T *wte, *wpe;
    int wpe_rows;
    const int *pos;
    int T_, C;
};

template <typename T, int W> __global__ void embed_forward_kernel(Embed<T> e, size_t n) {
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    size_t pieces = (size_t)(e.C / W), row = i / pieces, j0 = i % pieces * W;
    float x[W], y[W];
    load_vec<W>(x, e.wte + (size_t)e.ids[row] * e.C + j0);
    if (e.wpe) {
        size_t t = row % e.T_ + (e.pos ? e.pos[row / e.T_] : 0);
        if (t >= (size_t)e.wpe_rows) t = (size_t)e.wpe_rows - 1;
        load_vec<W>(y, e.wpe + t * e.C + j0);
#pragma unroll
        for (int j = 0; j < W; j++)
            x[j] += y[j];
    }
    store_vec<W>(e.out + row * e.C + j0, x);
}

template <typename T> struct Runs {
    float *dwte, *head, *tail;  // head, tail (chunks, C): pieces of runs that cross chunks
    const T *dout;
    const int *key, *index;  // sorted tokens and their rows
    size_t n;
    int C;
};

template <int W> __device__ __forceinline__ void add_vec(float *x, const float *y) {
#pragma unroll
    for (int j = 0; j < W; j++)
        x[j] += y[j];
}
template <int W> __device__ __forceinline__ void add_to(float *p, const float *x) {
    float y[W];
    load_vec<W>(y, p);
    add_vec<W>(y, x);
    store_vec<W>(p, y);
}

// blockIdx.x: chunk, blockIdx.y: columns.
template <typename T, int W> __global__ void embed_runs_kernel(Runs<T> r) {
    size_t chunk = blockIdx.x, first = chunk * CHUNK, end = min(first + CHUNK, r.n);
    int col = (blockIdx.y * blockDim.x + threadIdx.x) * W;
    if (col >= r.C) return;
    bool from_before = first > 0 && r.key[first - 1] == r.key[first];
    float sum[W] = {}, x[W];
    for (size_t i = first; i < end; i++) {
        load_vec<W>(x, r.dout + (size_t)r.index[i] * r.C + col);
        add_vec<W>(sum, x);
        int key = r.key[i];
        bool goes_on = i + 1 < r.n && r.key[i + 1] == key;
        if (goes_on && i + 1 < end) continue;
        if (from_before)
            store_vec<W>(r.head + chunk * r.C + col, sum);
        else if (goes_on)
            store_vec<W>(r.tail + chunk * r.C + col, sum);
        else
            add_to<W>(r.dwte + (size_t)key * r.C + col, sum);
        from_before = false;
#pragma unroll
        for (int j = 0; j < W; j++)
            sum[j] = 0.0f;
    }
}

template <typename T, int W> __global__ void embed_join_kernel(Runs<T> r) {
    size_t chunk = blockIdx.x, last = (chunk + 1) * CHUNK - 1;
    int col = (blockIdx.y * blockDim.x + threadIdx.x) * W;
    if (col >= r.C || last + 1 >= r.n) return;
    int key = r.key[last];
    if (r.key[last + 1] != key) return;
    // The run goes on; is this the chunk in which it starts?
    size_t first = chunk * CHUNK;
    if (first > 0 && r.key[first - 1] == key) return;
    float sum[W], x[W];
    load_vec<W>(sum, r.tail + chunk * r.C + col);
    for (size_t c = chunk + 1; c * CHUNK < r.n && r.key[c * CHUNK] == key; c++) {
        load_vec<W>(x, r.head + c * r.C + col);
        add_vec<W>(sum, x);
    }
    add_to<W>(r.dwte + (size_t)key * r.C + col, sum);
}

// dwpe (T, C) += dout summed over the batch.
template <typename T, int W>
__global__ void embed_places_kernel(float *dwpe, const T *dout, int B, size_t n) {
    size_t i = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) * W;
    if (i >= n) return;
    float sum[W] = {}, x[W];
    for (int b = 0; b < B; b++) {
        load_vec<W>(x, dout + b * n + i);
        add_vec<W>(sum, x);
    }
    add_to<W>(dwpe + i, sum);
}

template <typename T>
static void embed_forward_cuda(floatX *out, const int *ids, const floatX *wte, const floatX *wpe,
                               int wpe_rows, const int *pos, int B, int T_, int C) {
    Embed<T> e = {(T *)out, ids, (const T *)wte, (const T *)wpe, wpe_rows, pos, T_, C};
    size_t n = (size_t)B * T_ * C;
    if (C % 8 == 0 && fits<8>(e.out) && fits<8>(e.wte) && fits<8>(e.wpe)) {
        LAUNCH((embed_forward_kernel<T, 8>), ceil_div(n / 8, BLOCK), BLOCK, 0, cuda_stream())
        (e, n / 8);
    } else {
        LAUNCH((embed_forward_kernel<T, 1>), ceil_div(n, BLOCK), BLOCK, 0, cuda_stream())(e, n);
    }
}

template <typename T, int W> static void backward_tokens(const Runs<T> &r) {
    unsigned chunks = (unsigned)ceil_div(r.n, CHUNK);
    size_t threads = ceil_div((size_t)r.C, W);
    unsigned block = (unsigned)min_size(round_up(threads, WARP), COLUMN_THREADS);
    dim3 grid(chunks, (unsigned)ceil_div(threads, block));
    LAUNCH((embed_runs_kernel<T, W>), grid, block, 0, cuda_stream())(r);
    LAUNCH((embed_join_kernel<T, W>), grid, block, 0, cuda_stream())(r);
}

template <typename T>
static void embed_backward_cuda(float *dwte, float *dwpe, const floatX *dout_, const int *ids,
                                int B, int T_, int C) {
    const T *dout = (const T *)dout_;
    bool wide = C % 8 == 0 && fits<8>(dout) && fits<8>(dwte) && fits<8>(dwpe);
    if (dwte) {
        size_t n = (size_t)B * T_, pieces = ceil_div(n, CHUNK) * C;
        float *parts =
            static_cast<float *>(cuda_scratch(2 * pieces * sizeof(float) + sort_bytes(n)));
        Sorted s = sort_keys(ids, n, parts + 2 * pieces);
        Runs<T> r = {dwte, parts, parts + pieces, dout, s.key, s.index, n, C};
        if (wide)
            backward_tokens<T, 8>(r);
        else
            backward_tokens<T, 1>(r);
    }
    if (!dwpe) return;
    size_t n = (size_t)T_ * C;
    if (wide) {
        LAUNCH((embed_places_kernel<T, 8>), ceil_div(n / 8, BLOCK), BLOCK, 0, cuda_stream())
        (dwpe, dout, B, n);
    } else {
        LAUNCH((embed_places_kernel<T, 1>), ceil_div(n, BLOCK), BLOCK, 0, cuda_stream())
        (dwpe, dout, B, n);
    }
}

template <typename T> void embed_ops(Ops *o) {
    o->embed_forward = embed_forward_cuda<T>;
    o->embed_backward = embed_backward_cuda<T>;
}
template void embed_ops<float>(Ops *);
template void embed_ops<bf16>(Ops *);
