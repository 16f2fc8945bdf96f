// model_train.c - forward and backward of one micro-batch. Residual stream:
//   x = embed(ids);  x += attn(norm(x));  x += mlp(norm(x));  logits = head(norm(x))
// Every branch is added by the norm that follows it, so each x is written once.
#include "gpt/model_impl.h"

#include <assert.h>
#include <string.h>

void model_attn_call(LayerCall *out, const Model *m, const Acts *acts, const AttnDims *d,
                     int layer) {
    int first = model_layer_rows(m, layer).attn;
    memset(out, 0, sizeof *out);
    for (int i = 0; i < ATTN_MAX_TENSORS && first + i < m->params.n; i++) {
        out->dw[i] = model_grad(m, first + i);
    }
    LayerActs *a = acts ? &acts->layer[acts->n_layers == 1 ? 0 : layer] : NULL;
    size_t derived = (size_t)layer * (size_t)m->n_derived;
    out->call = (AttnCall){.ops = m->ops,
                           .d = *d,
                           .w = m->weight + first,
                           .dw = out->dw,
                           .saved = a ? a->saved : NULL,
                           .derived = m->derived + derived,
                           .dderived = m->dderived + derived,
                           .cache = out->cache,
                           .rope = m->rope,
                           .scratch = acts ? acts->scratch : NULL};
}

static void embed(Model *m, Acts *a, const AttnDims *d, const int *pos, floatX *out) {
    const Weight *wte = &m->weight[0],
                 *wpe = d->position == POSITION_LEARNED ? &m->weight[1] : NULL;
    floatX *x = a->embed ? a->embed : out;
    m->ops->embed_forward(x, a->ids, wte->data, wpe ? wpe->data : NULL, m->cfg.model.seq_len, pos,
                          d->B, d->T, d->C);
    if (!a->embed) return;
    NormArgs n = model_norm_args(m, (size_t)d->B * (size_t)d->T);
    m->ops->add_norm_forward(out, NULL, a->embed_mean, a->embed_rstd, x, NULL, NULL, NULL, &n);
}

static void mlp_forward(Model *m, Acts *a, LayerActs *la, LayerRows r, size_t N) {
    const Weight *fc = &m->weight[r.c_fc], *proj = &m->weight[r.c_proj];
    size_t C = (size_t)m->C, F = (size_t)m->F;
    m->ops->matmul(la->fc, (size_t)fc->OC, la->ln_2, C, fc, model_vector(m, r.c_fc_bias), fc->OC,
                   N);
    m->ops->act_forward(la->act, la->fc, (ActKind)m->cfg.model.activation, N, m->F);
    m->ops->matmul(a->branch, C, la->act, F, proj, model_vector(m, r.c_proj_bias), m->C, N);
}

void model_trunk(Model *m, Acts *a, const AttnDims *d, Cache *cache, int max_pos) {
    const Ops *ops = m->ops;
    size_t N = (size_t)d->B * (size_t)d->T;
    NormArgs n = model_norm_args(m, N);
    floatX *res = a->layer[0].res_in;
    embed(m, a, d, cache ? cache->device_pos : NULL, res);
    for (int l = 0; l < m->L; l++) {
        LayerActs *la = &a->layer[a->n_layers == 1 ? 0 : l];
        LayerRows r = model_layer_rows(m, l);
        ops->add_norm_forward(la->ln_1, la->res_in, la->mean_1, la->rstd_1, res,
                              l ? a->branch : NULL, model_vector(m, r.ln_1_weight),
                              model_vector(m, r.ln_1_bias), &n);
        LayerCall lc;
        model_attn_call(&lc, m, a, d, l);
        if (cache) {
            for (int i = 0; i < cache->n_rows; i++)
                lc.cache[i] = cache->row[l * cache->n_rows + i];
            lc.call.pos = cache->device_pos, lc.call.n_new = cache->device_n_new;
            lc.call.max_pos = max_pos;
            m->attn->extend(&lc.call, a->branch, la->ln_1);
        } else {
            m->attn->forward(&lc.call, a->branch, la->ln_1);
        }
        ops->add_norm_forward(la->ln_2, la->res_mid, la->mean_2, la->rstd_2, la->res_in, a->branch,
                              model_vector(m, r.ln_2_weight), model_vector(m, r.ln_2_bias), &n);
        mlp_forward(m, a, la, r, N);
        res = la->res_mid;
    }
    ops->add_norm_forward(a->ln_f, a->res_f, a->mean_f, a->rstd_f, res, a->branch,
                          model_vector(m, tensor_find(&m->params, "ln_f.weight")),
                          model_vector(m, tensor_find(&m->params, "ln_f.bias")), &n);
}

static AttnDims begin(Model *m, const int *ids, const int *targets) {
    Acts *a = m->acts;
    assert(a && "model_alloc_acts comes first");
    size_t bytes = (size_t)a->B * (size_t)a->T * sizeof(int);
    m->ops->upload_bytes(a->ids, ids, bytes);
    if (targets) m->ops->upload_bytes(a->targets, targets, bytes);
    return config_attn_dims(&m->cfg, a->B, a->T, a->T);
}

// Logits of rows [at, at + n) of ln_f into a->logits.
static void head_forward(Model *m, Acts *a, size_t at, size_t n) {
    size_t C = (size_t)m->C;
    m->ops->matmul(a->logits, (size_t)m->Vp, fx_at(m->ops, a->ln_f, at * C), C, model_head(m), NULL,
                   0, n);
}

// Loss and, with backward, the gradients of the head and of ln_f (into dtmp), chunk by chunk: the
// whole logits never exist.
static void loss_chunks(Model *m, Acts *a, float dscale, bool backward) {
    const Ops *ops = m->ops;
    const Weight *head = model_head(m);
    size_t N = (size_t)a->B * (size_t)a->T, C = (size_t)m->C, Vp = (size_t)m->Vp;
    float *dhead = model_grad(m, (int)(head - m->weight));
    for (size_t at = 0; at < N; at += (size_t)a->chunk) {
        size_t n = min_size((size_t)a->chunk, N - at);
        head_forward(m, a, at, n);
        ops->classifier(a->logits, a->losses + at, a->targets + at, n, m->V, m->Vp,
                        (float)m->cfg.model.logit_softcap, dscale, backward);
        if (!backward) continue;
        ops->matmul_dx(fx_at(ops, a->dtmp, at * C), C, a->logits, Vp, head, n, false);
        ops->matmul_dw(dhead, a->logits, Vp, fx_at(ops, a->ln_f, at * C), C, head, n);
    }
}

static void mlp_backward(Model *m, Acts *a, LayerActs *la, LayerRows r, size_t N) {
    const Ops *ops = m->ops;
    const Weight *fc = &m->weight[r.c_fc], *proj = &m->weight[r.c_proj];
    size_t C = (size_t)m->C, F = (size_t)m->F, W = (size_t)fc->OC;
    ops->matmul_dw(model_grad(m, r.c_proj), a->dres, C, la->act, F, proj, N);
    ops->matmul_dx(a->dact, F, a->dres, C, proj, N, false);
    ops->act_backward(a->dfc, a->dact, la->fc, (ActKind)m->cfg.model.activation, N, m->F);
    ops->matmul_dw(model_grad(m, r.c_fc), a->dfc, W, la->ln_2, C, fc, N);
    ops->matmul_dx(a->dtmp, C, a->dfc, W, fc, N, false);
    if (r.c_fc_bias < 0) return;
    ops->bias_dw(model_grad(m, r.c_proj_bias), a->dres, C, N, m->C);
    ops->bias_dw(model_grad(m, r.c_fc_bias), a->dfc, W, N, fc->OC);
}

// dres += gradient through the norm of x whose output gradient is dtmp.
static void norm_backward(Model *m, Acts *a, const floatX *x, int weight, int bias,
                          const float *mean, const float *rstd) {
    NormArgs n = model_norm_args(m, (size_t)a->B * (size_t)a->T);
    m->ops->add_norm_backward(a->dres, model_grad(m, weight), model_grad(m, bias), a->dtmp, x,
                              model_vector(m, weight), mean, rstd, &n);
}

static void embed_backward(Model *m, Acts *a, const AttnDims *d) {
    const Ops *ops = m->ops;
    size_t N = (size_t)d->B * (size_t)d->T;
    const floatX *dout = a->dres;
    if (a->embed) {
        NormArgs n = model_norm_args(m, N);
        ops->zero(a->dtmp, N * (size_t)m->C * ops->elem_size);
        ops->add_norm_backward(a->dtmp, NULL, NULL, a->dres, a->embed, NULL, a->embed_mean,
                               a->embed_rstd, &n);
        dout = a->dtmp;
    }
    float *dwpe = d->position == POSITION_LEARNED ? model_grad(m, 1) : NULL;
    ops->embed_backward(model_grad(m, 0), dwpe, dout, a->ids, d->B, d->T, d->C);
}

static void backward_layers(Model *m, Acts *a, const AttnDims *d, bool last, LayerDone *done,
                            void *ctx) {
    size_t N = (size_t)d->B * (size_t)d->T;
    m->ops->zero(a->dres, N * (size_t)m->C * m->ops->elem_size);
    norm_backward(m, a, a->res_f, tensor_find(&m->params, "ln_f.weight"),
                  tensor_find(&m->params, "ln_f.bias"), a->mean_f, a->rstd_f);
    if (done) done(ctx, m->L);
    for (int l = m->L - 1; l >= 0; l--) {
        LayerActs *la = &a->layer[l];
        LayerRows r = model_layer_rows(m, l);
        LayerCall lc;
        mlp_backward(m, a, la, r, N);
        norm_backward(m, a, la->res_mid, r.ln_2_weight, r.ln_2_bias, la->mean_2, la->rstd_2);
        model_attn_call(&lc, m, a, d, l);
        m->attn->backward(&lc.call, a->dtmp, a->dres, la->ln_1);
        norm_backward(m, a, la->res_in, r.ln_1_weight, r.ln_1_bias, la->mean_1, la->rstd_1);
        if (last && m->n_derived) m->attn->finish(&lc.call);
        if (done) done(ctx, l);
    }
    embed_backward(m, a, d);
    if (done) done(ctx, -1);
}

void model_step(Model *m, const int *ids, const int *targets, double n_targets, bool backward,
                bool last, LayerDone *layer_done, void *ctx) {
    Acts *a = m->acts;
    AttnDims d = begin(m, ids, targets);
    double scale = n_targets > 0 ? 1 / n_targets : 0;
    assert((!backward || m->grad_arena) && "the model was not created for training");
    model_trunk(m, a, &d, NULL, 0);
    loss_chunks(m, a, (float)scale, backward);
    m->ops->loss_add(m->state, a->losses, (size_t)a->B * (size_t)a->T, scale);
    if (backward) backward_layers(m, a, &d, last, layer_done, ctx);
}

void model_losses(Model *m, const int *ids, const int *targets, float *losses) {
    Acts *a = m->acts;
    AttnDims d = begin(m, ids, targets);
    model_trunk(m, a, &d, NULL, 0);
    loss_chunks(m, a, 0, false);
    m->ops->download_bytes(losses, a->losses, (size_t)a->B * (size_t)a->T * sizeof(float));
}

void model_logits(Model *m, const int *ids, float *logits) {
    Acts *a = m->acts;
    AttnDims d = begin(m, ids, NULL);
    model_trunk(m, a, &d, NULL, 0);
    size_t N = (size_t)a->B * (size_t)a->T, V = (size_t)m->V, Vp = (size_t)m->Vp;
    float *rows = mem_alloc((size_t)a->chunk * Vp, sizeof(float));
    for (size_t at = 0; at < N; at += (size_t)a->chunk) {
        size_t n = min_size((size_t)a->chunk, N - at);
        head_forward(m, a, at, n);
        m->ops->softcap(a->logits, n * Vp, (float)m->cfg.model.logit_softcap);
        m->ops->download(rows, a->logits, n * Vp);
        for (size_t i = 0; i < n; i++)
            memcpy(logits + (at + i) * V, rows + i * Vp, V * sizeof(float));
    }
    mem_free(rows);
}
