// test_cuda_embed.c - embeddings and cache rows of the CUDA tables against the CPU's.
#include "test/kernels/cuda/twin.h"

enum { V = 700, WPE_ROWS = 9 };

// How ids are drawn: over all of V, from a few, or one alone: long runs of equal tokens.
static void fill_ids(int *ids, size_t n, int different) {
    uint64_t s = 12345;
    for (size_t i = 0; i < n; i++) {
        s = s * 6364136223846793005u + 1442695040888963407u;
        ids[i] = (int)((s >> 33) % (uint64_t)different) * (V / different);
    }
}

static void check_case(TestCtx *t, const Ops *g, int B, int T, int C, int different, bool places) {
    const Ops *o = ops_cpu();
    size_t n = (size_t)B * T, c = (size_t)C;
    int *ids = mem_alloc(n, sizeof(int)), start[] = {4, 0, 2};
    fill_ids(ids, n, different);
    int *gids = twin_ints(g, ids, n), *gpos = twin_ints(g, start, 3);
    Twin wte = twin_noise(g, TYPE_FX, V * c, 1, 1), out = twin_new(g, TYPE_FX, n * c);
    Twin wpe = places ? twin_noise(g, TYPE_FX, WPE_ROWS * c, 2, 1) : twin_null();
    for (int ragged = 0; ragged < 2; ragged++) {
        o->embed_forward(cpu(out), ids, cpu(wte), cpu(wpe), WPE_ROWS, ragged ? start : NULL, B, T,
                         C);
        g->embed_forward(gpu(out), gids, gpu(wte), gpu(wpe), WPE_ROWS, ragged ? gpos : NULL, B, T,
                         C);
        TWIN_CHECK(t, g, out, places ? twin_tol(g, TYPE_FX, 1) : 0, 0);
    }
    Twin dwte = twin_noise(g, TYPE_F32, V * c, 3, 1), dout = twin_noise(g, TYPE_FX, n * c, 4, 1);
    Twin dwpe = places ? twin_noise(g, TYPE_F32, (size_t)T * c, 5, 1) : twin_null();
    o->embed_backward(dwte.cpu, dwpe.cpu, cpu(dout), ids, B, T, C);
    g->embed_backward(dwte.gpu, dwpe.gpu, gpu(dout), gids, B, T, C);
    TWIN_CHECK(t, g, dwte, twin_tol(g, TYPE_F32, n), 0);
    if (places) TWIN_CHECK(t, g, dwpe, twin_tol(g, TYPE_F32, (size_t)B), 0);
    TWIN_FREE(t, g, &wte, &out, &wpe, &dwte, &dout, &dwpe);
    g->free(gids);
    g->free(gpos);
    mem_free(ids);
}

static void embeddings_match(TestCtx *t) {
    const Ops *g;
    FOR_EACH_TABLE(g) {
        check_case(t, g, 1, 1, 8, V, true);
        check_case(t, g, 3, 11, 72, V, true);
        check_case(t, g, 2, 700, 8, V, false);
        check_case(t, g, 3, 5, 33, 3, true);
        check_case(t, g, 1, 3, 320, V, true);
        check_case(t, g, 2, 65, 1032, 4, false);
        for (int k = 1; k <= 6; k++) {
            twin_misalign(k);
            check_case(t, g, 2, 40, 16, 3, true);
        }
    }
}

static void gradients_of_frequent_tokens_match(TestCtx *t) {
    const Ops *g;
    FOR_EACH_TABLE(g) {
        check_case(t, g, 2, 320, 8, 1, false);
        check_case(t, g, 1, 32, 8, 1, false);
        check_case(t, g, 3, 111, 24, 2, false);
        check_case(t, g, 1, 640, 8, 10, false);
    }
}

static void large_ids_are_sorted_too(TestCtx *t) {
    const Ops *g;
    FOR_EACH_TABLE(g) {
        enum { BIG = 70001 };
        int ids[] = {BIG - 1, 256, 65536, 0, 256, BIG - 1};
        int *gids = twin_ints(g, ids, 6);
        float *zeros = mem_alloc(BIG, sizeof(float));
        Twin dwte = twin_of(g, TYPE_F32, zeros, BIG);
        Twin dout = twin_noise(g, TYPE_FX, 6, 1, 1);
        ops_cpu()->embed_backward(dwte.cpu, NULL, cpu(dout), ids, 1, 6, 1);
        g->embed_backward(dwte.gpu, NULL, gpu(dout), gids, 1, 6, 1);
        TWIN_CHECK(t, g, dwte, twin_tol(g, TYPE_F32, 2), 0);
        TWIN_FREE(t, g, &dwte, &dout);
        g->free(gids);
        mem_free(zeros);
    }
}

// shift: elements of the cache behind its alignment.
static void check_cache(TestCtx *t, const Ops *g, int T, int width, size_t pad, bool as_bf16,
                        size_t shift) {
    const Ops *o = ops_cpu();
    enum { B = 3, TMAX = 40 };
    int pos[] = {0, 5, 3}, n_new[] = {T, 0, T - 1};
    int *gpos = twin_ints(g, pos, B), *gnew = twin_ints(g, n_new, B);
    size_t ld = (size_t)width + pad, batch = (size_t)TMAX * width + pad, bytes = as_bf16 ? 2 : 4;
    ElemType type = as_bf16 ? TYPE_BF16 : TYPE_F32;
    Twin src = twin_noise(g, TYPE_FX, (size_t)B * T * ld, 1, 1);
    char *c = mem_alloc(B * batch, bytes), *got = mem_alloc(B * batch, bytes);
    char *all = g->alloc((B * batch + shift) * bytes), *d = all + shift * bytes;
    o->cache_append(c, batch, type, cpu(src), ld, width, pos, n_new, B, T);
    g->cache_append(d, batch, type, gpu(src), ld, width, gpos, gnew, B, T);
    g->download_bytes(got, d, B * batch * bytes);
    CHECK_SAME_BITS(t, got, c, B * batch * bytes);
    twin_free(t, g, &src);
    g->free(all), g->free(gpos), g->free(gnew);
    mem_free(c), mem_free(got);
}

static void cache_rows_land_at_their_positions(TestCtx *t) {
    const Ops *g;
    FOR_EACH_TABLE(g) {
        for (int as_bf16 = 0; as_bf16 < 2; as_bf16++) {
            check_cache(t, g, 7, 64, 8, as_bf16, 0);
            check_cache(t, g, 1, 24, 0, as_bf16, 0);
            check_cache(t, g, 7, 13, 1, as_bf16, 0);
            check_cache(t, g, 3, 16, 1, as_bf16, 0);
            check_cache(t, g, 13, 320, 0, as_bf16, 0);
            check_cache(t, g, 3, 16, 0, as_bf16, 1);
            twin_misalign(1);
            check_cache(t, g, 3, 16, 0, as_bf16, 0);
        }
    }
}

// Without pad the last row of the batch ends with its array.
static void check_latent(TestCtx *t, const Ops *g, int T, int groups, int r, size_t pad,
                         bool as_bf16) {
    const Ops *o = ops_cpu();
    enum { B = 3, BLOCKS = 3 };
    int pos[] = {0, 63, 20}, n_new[] = {0, T - 1, T}, ld_group = (r + 7) / 8 * 8;
    int *gpos = twin_ints(g, pos, B), *gnew = twin_ints(g, n_new, B);
    size_t ld = (size_t)groups * ld_group + pad, batch = (size_t)BLOCKS * LATENT_BLOCK * groups * r;
    size_t bytes = as_bf16 ? 2 : 4;
    ElemType type = as_bf16 ? TYPE_BF16 : TYPE_F32;
    Twin src = twin_noise(g, TYPE_FX, (size_t)B * T * ld, 1, 1);
    char *c = mem_alloc(B * batch, bytes), *got = mem_alloc(B * batch, bytes);
    void *d = g->alloc(B * batch * bytes);
    o->cache_append_latent(c, batch, type, cpu(src), ld, groups, r, ld_group, pos, n_new, B, T);
    g->cache_append_latent(d, batch, type, gpu(src), ld, groups, r, ld_group, gpos, gnew, B, T);
    g->download_bytes(got, d, B * batch * bytes);
    CHECK_SAME_BITS(t, got, c, B * batch * bytes);
    twin_free(t, g, &src);
    g->free(d), g->free(gpos), g->free(gnew);
    mem_free(c), mem_free(got);
}

static void latent_rows_are_transposed_into_blocks(TestCtx *t) {
    const Ops *g;
    FOR_EACH_TABLE(g) {
        for (int as_bf16 = 0; as_bf16 < 2; as_bf16++) {
            check_latent(t, g, 70, 3, 13, 3, as_bf16);
            check_latent(t, g, 1, 2, 16, 0, as_bf16);
            check_latent(t, g, 33, 1, 8, 0, as_bf16);
        }
    }
}

TEST_MAIN({"embeddings_match", embeddings_match},
          {"gradients_of_frequent_tokens_match", gradients_of_frequent_tokens_match},
          {"large_ids_are_sorted_too", large_ids_are_sorted_too},
          {"cache_rows_land_at_their_positions", cache_rows_land_at_their_positions},
          {"latent_rows_are_transposed_into_blocks", latent_rows_are_transposed_into_blocks})
