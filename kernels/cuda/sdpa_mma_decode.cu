// sdpa_mma_decode.cu - a few new tokens over a cache on tensor cores. The query heads of a
// key/value head and their new tokens are packed into 16 rows of mma, so that the cache is read
// once; a warp takes every fourth run of 16 keys, with copies of its own under way, and keeps a
// softmax of its own. The warps of a block, then the splits of the cache, are added up at the end.
#include "kernels/cuda/sdpa_mma.cuh"
#include "kernels/cuda/sdpa_mma.h"

enum { ROWS = 16, KEYS = 16, WARPS = 4 };

template <int DK_, int DV_, int STAGES_> struct DecodeShape {
    enum { DK = DK_, DV = DV_, STAGES = STAGES_, STAGE = KEYS * (DK + DV) };
    // Stages of all warps. At first queries (ROWS, DK) lie in the last stage of the last warp, at
    // the end o (WARPS, ROWS, DV), m and l (WARPS, ROWS) in fp32 in all of it.
    enum { SHARED_BYTES = WARPS * STAGES * STAGE * 2, QUERIES = (WARPS * STAGES - 1) * STAGE };
    static_assert(WARPS * ROWS * (DV + 2) * 4 <= SHARED_BYTES, "the sums fit");
    static_assert(SHARED_BYTES <= MMA_SHARED_BYTES, "fits small devices");
};

struct DecodeCall {
    bf16 *out;
    const bf16 *q, *k, *v;
    SdpaArgs a;
    SplitRows split;
    int split_keys, row_tiles;
};

// Packed rows first ... first + n of a key/value head, keys begin ... end.
struct DecodeTile {
    int b, kv, split, pos, G, first, n, begin, end;
};
__device__ __forceinline__ DecodeTile decode_tile(const DecodeCall &c) {
    const SdpaArgs &a = c.a;
    DecodeTile t;
    unsigned i = blockIdx.x;
    t.kv = i % a.NKV;
    i /= a.NKV;
    t.first = (int)(i % c.row_tiles) * ROWS;
    i /= c.row_tiles;
    t.split = i % c.split.n_splits;
    t.b = i / c.split.n_splits;
    t.G = a.NH / a.NKV;
    t.pos = a.pos[t.b];
    t.n = min((int)ROWS, a.n_new[t.b] * t.G - t.first);
    t.begin = t.split * c.split_keys;
    t.end = min(t.begin + c.split_keys, t.pos + (t.first + t.n - 1) / t.G + 1);
    return t;
}

// A warp starts to copy 16 rows of D values, those below n; zeros for the others.
template <int D>
__device__ __forceinline__ void copy_warp_rows(bf16 *tile, const bf16 *src, size_t ld, int n) {
    int lane = threadIdx.x % WARP;
#pragma unroll
    for (int i = 0; i < 16 * D / 8; i += WARP) {
        int row = (i + lane) / (D / 8), chunk = (i + lane) % (D / 8);
        cp_async_16(chunk_at<D>(tile, row, chunk), src + row * ld + chunk * 8, row < n ? 16 : 0);
    }
}

// The warp's run of keys from `key` on; a group of its own even when there is nothing to copy.
template <typename S>
__device__ __forceinline__ void copy_run(bf16 *stage, const DecodeCall &c, const DecodeTile &t,
                                         int key) {
    const SdpaArgs &a = c.a;
    if (key < t.end) {
        copy_warp_rows<S::DK>(stage, c.k + t.b * a.k_batch + t.kv * a.k_head + key * a.k_token,
                              a.k_token, t.end - key);
        copy_warp_rows<S::DV>(stage + KEYS * S::DK,
                              c.v + t.b * a.v_batch + t.kv * a.v_head + key * a.v_token, a.v_token,
                              t.end - key);
    }
    cp_async_commit();
}

template <int DV> struct DecodeRows { float o[DV / 8][4], m[2], l[2]; };

// x = scores of 16 keys becomes p. limit: the last key of a row, counted from the run's first.
template <int DV>
__device__ __forceinline__ void run_softmax(float (&x)[2][4], DecodeRows<DV> &rows,
                                            const int (&limit)[2], float scale) {
    int col = threadIdx.x % 4 * 2;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float top = -INFINITY, sum = 0.0f;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float *y = &x[i / 2][2 * r + i % 2];
            if (i / 2 * 8 + col + i % 2 > limit[r]) *y = -INFINITY;
            top = fmaxf(top, *y);
        }
        top = fmaxf(rows.m[r], warp_max<4>(top) * scale);
        float base = top == -INFINITY ? 0.0f : top, factor = exp2_approx(rows.m[r] - base);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float *y = &x[i / 2][2 * r + i % 2];
            *y = exp2_approx(fmaf(*y, scale, -base));
            sum += *y;
        }
        rows.m[r] = top;
        rows.l[r] = rows.l[r] * factor + sum;
#pragma unroll
        for (int j = 0; j < DV / 8; j++)
            rows.o[j][2 * r] *= factor, rows.o[j][2 * r + 1] *= factor;
    }
}

// The warp's rows and 16 keys, which are in `stage`.
template <typename S>
__device__ __forceinline__ void attend_run(DecodeRows<S::DV> &rows,
                                           const unsigned (&q)[S::DK / 16][4], const bf16 *stage,
                                           const int (&limit)[2], float scale) {
    float x[2][4];
    unsigned a[4], b[4];
    LaneMap at = lane_map();
    clear_rows(x);
#pragma unroll
    for (int d = 0; d < S::DK; d += 16) {
        load_b<S::DK>(b, stage, at, 0, d);
        mma_m16n8k16(x[0], q[d / 16], b[0], b[1]);
        mma_m16n8k16(x[1], q[d / 16], b[2], b[3]);
    }
    run_softmax(x, rows, limit, scale);
    pack_a(a, x[0], x[1]);
#pragma unroll
    for (int j = 0; j < S::DV / 8; j += 2) {
        load_b_trans<S::DV>(b, stage + KEYS * S::DK, at, 0, 8 * j);
        mma_m16n8k16(rows.o[j], a, b[0], b[1]);
        mma_m16n8k16(rows.o[j + 1], a, b[2], b[3]);
    }
}

// Of a run that not all rows see whole: values that are not finite are cleared, by the lanes that
// copied them; whether there were any.
template <typename S> __device__ __forceinline__ bool clear_run(bf16 *stage) {
    int lane = threadIdx.x % WARP;
    bool any = false;
    for (int i = lane; i < KEYS * S::DV / 8; i += WARP)
        any |= clear_not_finite(
            chunk_at<S::DV>(stage + KEYS * S::DK, i / (S::DV / 8), i % (S::DV / 8)));
    return warp_ballot(any) != 0;
}
// What was cleared, added for the rows that see it. limit: as for attend_run.
template <typename S>
__device__ __forceinline__ void add_cleared(DecodeRows<S::DV> &rows, const DecodeCall &c,
                                            const DecodeTile &t, int key, const int (&limit)[2]) {
    const SdpaArgs &a = c.a;
    const bf16 *v = c.v + t.b * a.v_batch + t.kv * a.v_head + key * a.v_token + threadIdx.x % 4 * 2;
    for (int k = 0; k < min((int)KEYS, t.end - key); k++, v += a.v_token) {
#pragma unroll
        for (int j = 0; j < S::DV / 8; j++) {
            float y[2];
            load_vec<2>(y, v + 8 * j);
#pragma unroll
            for (int e = 0; e < 4; e++)
                add_not_finite(rows.o[j][e], y[e % 2], k <= limit[e / 2]);
        }
    }
}

// What the warps found, side by side in shared memory.
template <int DV>
__device__ __forceinline__ void put_rows(float *shared, const DecodeRows<DV> &rows) {
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    float *o = shared + warp * ROWS * DV, *m = shared + WARPS * ROWS * DV + warp * ROWS;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int row = lane / 4 + 8 * r;
#pragma unroll
        for (int j = 0; j < DV / 8; j++)
            store_vec<2>(o + row * DV + 8 * j + lane % 4 * 2, &rows.o[j][2 * r]);
        float l = warp_sum<4>(rows.l[r]);
        if (lane % 4 == 0) m[row] = rows.m[r], m[WARPS * ROWS + row] = l;
    }
}

// The sum over warps of 8 values of a row, to the output or to the split's part.
template <int DV>
__device__ __forceinline__ void add_warps(const float *shared, const DecodeCall &c,
                                          const DecodeTile &t) {
    const float *m = shared + WARPS * ROWS * DV, *l = m + WARPS * ROWS;
    for (int i = threadIdx.x; i < t.n * (DV / 8); i += WARPS * WARP) {
        int row = i / (DV / 8), col = i % (DV / 8) * 8, at = t.first + row,
            h = t.kv * t.G + at % t.G;
        float top = -INFINITY, sum = 0.0f, y[8] = {};
#pragma unroll
        for (int w = 0; w < WARPS; w++)
            top = fmaxf(top, m[w * ROWS + row]);
#pragma unroll
        for (int w = 0; w < WARPS; w++) {
            float x[8], factor = top == -INFINITY ? 0.0f : exp2_approx(m[w * ROWS + row] - top);
            load_vec<8>(x, shared + (w * ROWS + row) * DV + col);
            sum += factor * l[w * ROWS + row];
#pragma unroll
            for (int j = 0; j < 8; j++)
                y[j] += factor * x[j];
        }
#pragma unroll
        for (int j = 0; j < 8; j++)
            y[j] /= sum;
        if (c.split.n_splits == 1) {
            store_vec<8>(c.out + t.b * c.a.o_batch + at / t.G * c.a.o_token + h * c.a.o_head + col,
                         y);
            continue;
        }
        size_t to = t.split * c.split.rows + ((size_t)t.b * c.a.NH + h) * c.a.Tq + at / t.G;
        store_vec<8>(c.split.out + to * DV + col, y);
        if (col == 0) c.split.lse[to] = top + log2f(sum);
    }
}

template <typename S>
__global__ void __launch_bounds__(WARPS *WARP, 2) sdpa_mma_decode_kernel(DecodeCall c) {
    SHARED(bf16, shared);
    DecodeTile t = decode_tile(c);
    if (t.n <= 0) return;  // the whole block
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    bf16 *q_tile = shared + S::QUERIES, *stages = shared + warp * S::STAGES * S::STAGE;
    const bf16 *from = c.q + t.b * c.a.q_batch + (size_t)t.kv * t.G * c.a.q_head;
    for (int i = threadIdx.x; i < ROWS * S::DK / 8; i += WARPS * WARP) {
        int row = i / (S::DK / 8), chunk = i % (S::DK / 8), at = t.first + row;
        cp_async_16(chunk_at<S::DK>(q_tile, row, chunk),
                    from + at / t.G * c.a.q_token + at % t.G * c.a.q_head + chunk * 8,
                    row < t.n ? 16 : 0);
    }
    cp_async_commit();
    int key = t.begin + warp * KEYS, limit[2], stage = 0;
#pragma unroll
    for (int r = 0; r < 2; r++)
        limit[r] = t.pos + (t.first + lane / 4 + 8 * r) / t.G - key;
#pragma unroll
    for (int i = 0; i < S::STAGES - 1; i++)
        copy_run<S>(stages + i * S::STAGE, c, t, key + i * WARPS * KEYS);
    cp_async_wait<S::STAGES - 1>();
    __syncthreads();  // the queries are here
    unsigned q[S::DK / 16][4];
    load_operands<S::DK>(q, q_tile, 0);
    __syncthreads();  // nobody reads them any more
    DecodeRows<S::DV> rows;
    clear_rows(rows.o);
    rows.m[0] = rows.m[1] = -INFINITY;
    rows.l[0] = rows.l[1] = 0.0f;
    for (; key < t.end; key += WARPS * KEYS) {
        bool cleared = false;
        cp_async_wait<S::STAGES - 2>();
        if (key + KEYS - 1 > t.pos) cleared = clear_run<S>(stages + stage * S::STAGE);
        __syncwarp();  // the keys are here, and no lane reads those before any more
        int free = stage == 0 ? S::STAGES - 1 : stage - 1;
        copy_run<S>(stages + free * S::STAGE, c, t, key + (S::STAGES - 1) * WARPS * KEYS);
        attend_run<S>(rows, q, stages + stage * S::STAGE, limit, c.a.scale * LOG2E);
        if (cleared) add_cleared<S>(rows, c, t, key, limit);
        limit[0] -= WARPS * KEYS, limit[1] -= WARPS * KEYS;
        stage = stage == S::STAGES - 1 ? 0 : stage + 1;
    }
    __syncthreads();
    float *sums = reinterpret_cast<float *>(shared);
    put_rows(sums, rows);
    __syncthreads();
    add_warps<S::DV>(sums, c, t);
}

template <typename S> static void launch(const DecodeCall &c, size_t blocks) {
    LAUNCH(sdpa_mma_decode_kernel<S>, blocks, WARPS * WARP, S::SHARED_BYTES, cuda_stream())(c);
}

bool sdpa_mma_decode(bf16 *out, const bf16 *q, const bf16 *k, const bf16 *v, const SdpaArgs *a) {
    if (!sdpa_mma_takes(a) || !fits<8>(out) || !fits<8>(q) || !fits<8>(k) || !fits<8>(v))
        return false;
    DecodeCall c = {out, q, k, v, *a, {}, 0, 0};
    c.row_tiles = (int)ceil_div((size_t)a->Tq * (size_t)(a->NH / a->NKV), ROWS);
    size_t blocks = (size_t)c.row_tiles * a->B * a->NKV;
    c.split = sdpa_splits(a, blocks, &c.split_keys);
    blocks *= (size_t)c.split.n_splits;
    if (a->HS == 64)
        launch<DecodeShape<64, 64, 3>>(c, blocks);
    else if (a->HS == 128)
        launch<DecodeShape<128, 128, 3>>(c, blocks);
    else
        launch<DecodeShape<192, 128, 2>>(c, blocks);
    if (c.split.n_splits > 1) sdpa_combine(out, c.split, a);
    return true;
}
