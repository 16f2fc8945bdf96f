// lowrank_mma_extend.cu - attention over cached low-rank rows by way of whole keys and values: they
// are rebuilt in scratch for some rows of the batch at a time, then attended to like any others.
// For many new tokens that costs little beside the products with them.
#include "kernels/cuda/lowrank_mma.h"
#include "kernels/cuda/sdpa_mma.h"

static const size_t REBUILT_BYTES = (size_t)256 << 20;  // at a time, or one row of the batch

bool lowrank_mma_extend(bf16 *out, const bf16 *q, const LowRankCache *c, const SdpaArgs *a) {
    SdpaArgs x = *a;
    size_t positions = round_up((size_t)a->max_pos, LATENT_BLOCK), NH = (size_t)a->NH;
    size_t keys = positions * NH * a->HS, values = positions * NH * a->HV;
    int n_b = (int)min_size((size_t)a->B, 1 + REBUILT_BYTES / ((keys + values) * sizeof(bf16)));
    x.NKV = a->NH, x.Tk = (int)positions, x.kv_type = TYPE_BF16;
    x.k_token = NH * a->HS, x.k_head = (size_t)a->HS, x.k_batch = keys;
    x.v_token = NH * a->HV, x.v_head = (size_t)a->HV, x.v_batch = values;
    if (a->HS != a->HV || !sdpa_mma_takes(&x) || !fits<8>(out) || !fits<8>(q)) return false;
    bf16 *k = static_cast<bf16 *>(cuda_scratch_outer((keys + values) * n_b * sizeof(bf16)));
    bf16 *v = k + keys * n_b;
    for (int b = 0; b < a->B; b += n_b) {
        x.B = min_int(n_b, a->B - b);
        CacheExpand rebuild = {k, b, x.B, (int)positions, a->HS, true};
        if (!lowrank_mma_expand(&rebuild, c, a)) return false;
        rebuild.out = v, rebuild.width = a->HV, rebuild.keys = false;
        if (!lowrank_mma_expand(&rebuild, c, a)) return false;
        x.pos = a->pos + b, x.n_new = a->n_new + b;
        sdpa_mma_extend(out + b * a->o_batch, q + b * a->q_batch, k, v, &x);
    }
    return true;
}
