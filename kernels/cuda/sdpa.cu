// sdpa.cu - attention in the op table: tensor cores where sizes and alignment suit them, the plain
// kernels otherwise.
#include "kernels/cuda/families.h"
#include "kernels/cuda/sdpa_mma.h"
#include "kernels/cuda/sdpa_plain.h"

static void forward_bf16(floatX *out, float *lse, const floatX *q, const floatX *k, const floatX *v,
                         const SdpaArgs *args) {
    SdpaArgs a = *args;
    a.pos = a.n_new = nullptr;
    if (!sdpa_mma_forward((bf16 *)out, lse, (const bf16 *)q, (const bf16 *)k, (const bf16 *)v, &a))
        sdpa_plain_forward<bf16>(out, lse, q, k, v, &a);
}

static void backward_bf16(floatX *dq, floatX *dk, floatX *dv, const floatX *dout, const floatX *out,
                          const float *lse, const floatX *q, const floatX *k, const floatX *v,
                          const SdpaArgs *a) {
    if (!sdpa_mma_backward((bf16 *)dq, (bf16 *)dk, (bf16 *)dv, (const bf16 *)dout,
                           (const bf16 *)out, lse, (const bf16 *)q, (const bf16 *)k,
                           (const bf16 *)v, a))
        sdpa_plain_backward<bf16>(dq, dk, dv, dout, out, lse, q, k, v, a);
}

bool sdpa_mma_extend(bf16 *out, const bf16 *q, const bf16 *k, const bf16 *v, const SdpaArgs *a) {
    if (sdpa_mma_latent(out, q, k, v, a)) return true;
    if ((size_t)a->Tq * (size_t)(a->NH / a->NKV) <= DECODE_ROWS)
        return sdpa_mma_decode(out, q, k, v, a);
    return sdpa_mma_forward(out, nullptr, q, k, v, a);
}

static void extend_bf16(floatX *out, const floatX *q, const void *k, const void *v,
                        const SdpaArgs *a) {
    bool done = a->kv_type == TYPE_BF16 &&
                sdpa_mma_extend((bf16 *)out, (const bf16 *)q, (const bf16 *)k, (const bf16 *)v, a);
    if (!done) sdpa_plain_extend<bf16>(out, q, k, v, a);
}

template <> void sdpa_ops<float>(Ops *o) {
    o->sdpa_forward = sdpa_plain_forward<float>;
    o->sdpa_backward = sdpa_plain_backward<float>;
    o->sdpa_extend = sdpa_plain_extend<float>;
}
template <> void sdpa_ops<bf16>(Ops *o) {
    o->sdpa_forward = forward_bf16;
    o->sdpa_backward = backward_bf16;
    o->sdpa_extend = extend_bf16;
}
