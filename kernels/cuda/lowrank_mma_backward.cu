// lowrank_mma_backward.cu - gradients of latents and factors on tensor cores, from the gradient dx
// of x_h = S + Z_h B_h^T: dz_h = dx_h B_h, dB_h = dx_h^T Z_h. A block takes 64 ranks of a head and
// every so many runs of 64 tokens, reads dx once for both, and leaves its sum of dB in scratch; a
// second kernel adds the blocks up in a fixed order.
#include "kernels/cuda/columns.h"
#include "kernels/cuda/lowrank_mma.h"
#include "kernels/cuda/sdpa_mma.cuh"

enum { ROWS = 64, RANKS = 64, WARPS = 4, THREADS = WARPS * WARP };

struct GradCall {
    bf16 *dz;
    float *part;  // (shares, NH, HS, R)
    const bf16 *dx, *z, *b;
    LowRankArgs a;
    size_t N, shares;
};

template <int HS_> struct GradShape {
    enum { HS = HS_, STAGE = ROWS * (HS + RANKS) };
    // Factors (HS, RANKS), dz (ROWS, RANKS), two stages of [dx | latents]
    enum { SHARED_BYTES = (HS * RANKS + ROWS * RANKS + 2 * STAGE) * 2 };
    static_assert(SHARED_BYTES <= MMA_SHARED_BYTES, "fits small devices");
};

// A tile of 64 ranks from rank i on: `left` of them exist.
template <int HEIGHT>
__device__ __forceinline__ void copy_ranks(bf16 *tile, const bf16 *src, size_t ld, int n,
                                           int left) {
    for (int i = threadIdx.x; i < HEIGHT * RANKS / 8; i += THREADS) {
        int row = i / (RANKS / 8), chunk = i % (RANKS / 8);
        bool exists = row < n && chunk * 8 < left;
        cp_async_16(chunk_at<RANKS>(tile, row, chunk), src + row * ld + chunk * 8, exists ? 16 : 0);
    }
}

// The block's head, its first rank and its share of the tokens.
struct GradTile {
    int h, i;
    size_t share;
};

template <typename S>
__device__ __forceinline__ void copy_tokens(bf16 *stage, const GradCall &c, const GradTile &t,
                                            size_t n0) {
    int n = (int)min((size_t)ROWS, c.N - n0);
    copy_rows<S::HS, ROWS, THREADS>(stage, c.dx + n0 * c.a.ld_out + (size_t)t.h * S::HS, c.a.ld_out,
                                    n);
    copy_ranks<ROWS>(stage + ROWS * S::HS, c.z + n0 * c.a.ld_z + (size_t)t.h * c.a.R + t.i,
                     c.a.ld_z, n, c.a.R - t.i);
}

// dz (the warp's 16 tokens, RANKS) = dx b
template <int HS>
__device__ __forceinline__ void latent_gradient(float (&dz)[RANKS / 8][4], const bf16 *dx,
                                                const bf16 *b_tile, int row) {
    LaneMap at = lane_map();
    clear_rows(dz);
#pragma unroll
    for (int k = 0; k < HS; k += 16) {
        unsigned a[4], b[4];
        load_a<HS>(a, dx, at, row, k);
#pragma unroll
        for (int j = 0; j < RANKS / 8; j += 2) {
            load_b_trans<RANKS>(b, b_tile, at, k, 8 * j);
            mma_m16n8k16(dz[j], a, b[0], b[1]);
            mma_m16n8k16(dz[j + 1], a, b[2], b[3]);
        }
    }
}

// db (the warp's HS / 4 rows, RANKS) += dx^T z
template <int HS>
__device__ __forceinline__ void factor_gradient(float (&db)[HS / 64][RANKS / 8][4], const bf16 *dx,
                                                const bf16 *z, int row) {
    LaneMap at = lane_map();
#pragma unroll
    for (int k = 0; k < ROWS; k += 16) {
        unsigned a[HS / 64][4], b[4];
#pragma unroll
        for (int m = 0; m < HS / 64; m++)
            load_a_trans<HS>(a[m], dx, at, k, row + 16 * m);
#pragma unroll
        for (int j = 0; j < RANKS / 8; j += 2) {
            load_b_trans<RANKS>(b, z, at, k, 8 * j);
#pragma unroll
            for (int m = 0; m < HS / 64; m++) {
                mma_m16n8k16(db[m][j], a[m], b[0], b[1]);
                mma_m16n8k16(db[m][j + 1], a[m], b[2], b[3]);
            }
        }
    }
}

template <typename S>
__global__ void __launch_bounds__(THREADS) lowrank_mma_backward_kernel(GradCall c) {
    enum { HS = S::HS };
    SHARED(bf16, b_tile);
    bf16 *dz_tile = b_tile + HS * RANKS, *stages = dz_tile + ROWS * RANKS;
    int pieces = (c.a.R + RANKS - 1) / RANKS, warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    GradTile t = {(int)(blockIdx.x / pieces % c.a.NH), (int)(blockIdx.x % pieces) * RANKS,
                  blockIdx.x / pieces / c.a.NH};
    int left = c.a.R - t.i, stage = 0;
    copy_ranks<HS>(b_tile, c.b + (size_t)t.h * HS * c.a.R + t.i, (size_t)c.a.R, HS, left);
    copy_tokens<S>(stages, c, t, t.share * ROWS);
    cp_async_commit();
    float db[HS / 64][RANKS / 8][4], dz[RANKS / 8][4], one[2] = {1.0f, 1.0f};
#pragma unroll
    for (int m = 0; m < HS / 64; m++)
        clear_rows(db[m]);
    for (size_t n0 = t.share * ROWS; n0 < c.N; n0 += c.shares * ROWS, stage ^= 1) {
        bf16 *dx = stages + stage * S::STAGE;
        size_t next = n0 + c.shares * ROWS;
        cp_async_wait<0>();
        __syncthreads();  // the tokens are here, and nobody reads those before any more
        if (next < c.N) copy_tokens<S>(stages + (stage ^ 1) * S::STAGE, c, t, next);
        cp_async_commit();
        factor_gradient<HS>(db, dx, dx + ROWS * HS, warp * HS / WARPS);
        latent_gradient<HS>(dz, dx, b_tile, warp * 16);
        bf16 *out = c.dz + n0 * c.a.ld_z + (size_t)t.h * c.a.R + t.i;
        store_rows<RANKS>(dz, one, dz_tile, warp * 16, PackedRows{out, c.a.ld_z, 0, 1, 0},
                          (int)min((size_t)ROWS, c.N - n0), left / 8);
    }
    float *part = c.part + ((t.share * c.a.NH + t.h) * HS + warp * HS / WARPS) * c.a.R + t.i;
#pragma unroll
    for (int i = 0; i < HS / 32; i++) {  // rows lane/4 + 8 i
#pragma unroll
        for (int j = 0; j < RANKS / 8; j++) {
            float *to = part + (size_t)(8 * i + lane / 4) * c.a.R + 8 * j + lane % 4 * 2;
            if (8 * j < left) store_vec<2>(to, &db[i / 2][j][i % 2 * 2]);
        }
    }
}

template <int HS> static void launch(const GradCall &c, size_t blocks) {
    LAUNCH(lowrank_mma_backward_kernel<GradShape<HS>>, blocks, THREADS, GradShape<HS>::SHARED_BYTES,
           cuda_stream())
    (c);
}

bool lowrank_mma_backward(bf16 *dz, float *db, const bf16 *dx, const bf16 *z, const bf16 *b,
                          const LowRankArgs *a) {
    size_t strides = a->ld_out | a->ld_z | (size_t)a->R, n = (size_t)a->NH * a->HS * a->R;
    bool fit = fits<8>(dz) && fits<8>(dx) && fits<8>(z) && fits<8>(b) && has_mma_shared();
    if (!fit || strides % 8 || (a->HS != 64 && a->HS != 128)) return false;
    GradCall c = {dz, nullptr, dx, z, b, *a, (size_t)a->B * a->T, 1};
    size_t tiles = (size_t)a->NH * ceil_div((size_t)a->R, RANKS);
    size_t wanted = ceil_div(3 * (size_t)cuda_device()->n_sm, tiles);
    c.shares = min_size(wanted, ceil_div(c.N, ROWS));
    c.part = static_cast<float *>(cuda_scratch(c.shares * n * sizeof(float)));
    if (a->HS == 64)
        launch<64>(c, tiles * c.shares);
    else
        launch<128>(c, tiles * c.shares);
    columns_add(db, c.part, n, c.shares, n);
    return true;
}
