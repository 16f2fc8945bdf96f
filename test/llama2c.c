// llama2c.c - see llama2c.h. The file, little endian:
//   offset  size   meaning
//   0       7*4    int32: dim, hidden_dim, n_layers, n_heads, n_kv_heads, vocab_size, seq_len
//                  (vocab_size < 0: an output matrix of its own follows at the end)
//   28      ...    fp32, each for all layers: embedding, attention norm, wq, wk, wv, wo, MLP norm,
//                  w1 (gate), w2 (down), w3 (up); final norm; two unused rotation tables
// Its rotation turns adjacent pairs (2i, 2i+1); ours turns (i, i + HS/2), so the rows of wq and wk
// are reordered in each head.
#include "test/llama2c.h"

#include <string.h>

enum { MAX_BYTES = 64 << 20 };

static bool make_config(Config *c, const int32_t *h, Error *err) {
    Buf json = {0};
    buf_printf(
        &json,
        "{\"model\": {\"n_embd\": %d, \"ffn_dim\": %d, \"n_layer\": %d, \"n_head\": %d, "
        "\"vocab_size\": %d, \"seq_len\": %d, \"norm\": \"rmsnorm\", \"norm_weight\": true, "
        "\"norm_eps\": 1e-5, \"embed_norm\": false, \"position\": \"rope\", \"rope_theta\": 10000, "
        "\"qk_norm\": false, \"activation\": \"swiglu\", \"bias\": false, \"tied_embeddings\": "
        "true, "
        "\"logit_softcap\": 0}, \"attention\": {\"type\": \"gqa\", \"n_kv_head\": %d}, "
        "\"optim\": {\"head\": {\"optimizer\": \"adamw\"}}, \"train\": {\"compute\": \"fp32\"}}",
        h[0], h[1], h[2], h[3], h[5], h[6], h[4]);
    config_default(c);
    c->batch.tokens = h[6];
    bool ok = config_parse(c, json.text, "llama2.c header", err) && config_finish(c, err);
    buf_free(&json);
    return ok;
}

static void set(Model *m, int layer, const char *name, const float *values) {
    char full[TENSOR_NAME_MAX];
    if (layer < 0)
        snprintf(full, sizeof full, "%s", name);
    else
        snprintf(full, sizeof full, "h.%d.%s", layer, name);
    int i = tensor_find(&m->params, full);
    if (i < 0) die("no tensor %s", full);
    model_set_tensor(m, i, values);
}

// Rows of each head from adjacent pairs to halves, odd ones first.
static void set_rotated(Model *m, int layer, const char *name, const float *w, int heads, int HS,
                        int C) {
    float *out = mem_alloc((size_t)heads * (size_t)HS * (size_t)C, sizeof(float));
    for (int h = 0; h < heads; h++) {
        for (int i = 0; i < HS; i++) {
            int to = (i % 2 ? 0 : HS / 2) + i / 2;
            memcpy(out + ((size_t)h * (size_t)HS + (size_t)to) * (size_t)C,
                   w + ((size_t)h * (size_t)HS + (size_t)i) * (size_t)C, (size_t)C * sizeof(float));
        }
    }
    set(m, layer, name, out);
    mem_free(out);
}

static void set_layers(Model *m, const float *w, int kv_heads) {
    size_t C = (size_t)m->C, F = (size_t)m->F, L = (size_t)m->L;
    int HS = m->cfg.model.head_dim;
    size_t KV = (size_t)kv_heads * (size_t)HS;
    const float *norm1 = w, *wq = norm1 + L * C, *wk = wq + L * C * C, *wv = wk + L * KV * C;
    const float *wo = wv + L * KV * C, *norm2 = wo + L * C * C, *w1 = norm2 + L * C;
    const float *w2 = w1 + L * F * C, *w3 = w2 + L * F * C;
    float *fc = mem_alloc(2 * F * C, sizeof(float));
    for (size_t l = 0; l < L; l++) {
        int layer = (int)l;
        set(m, layer, "ln_1.weight", norm1 + l * C);
        set_rotated(m, layer, "attn.wq", wq + l * C * C, m->NH, HS, m->C);
        set_rotated(m, layer, "attn.wk", wk + l * KV * C, kv_heads, HS, m->C);
        set(m, layer, "attn.wv", wv + l * KV * C);
        set(m, layer, "attn.wo", wo + l * C * C);
        set(m, layer, "ln_2.weight", norm2 + l * C);
        memcpy(fc, w1 + l * F * C, F * C * sizeof(float));
        memcpy(fc + F * C, w3 + l * F * C, F * C * sizeof(float));
        set(m, layer, "mlp.c_fc", fc);
        set(m, layer, "mlp.c_proj", w2 + l * F * C);
    }
    mem_free(fc);
    set(m, -1, "ln_f.weight", w3 + L * F * C);
}

Model *llama2c_load(const char *path, const Ops *ops, Error *err) {
    char *data;
    size_t n;
    Config c;
    if (!file_read(path, MAX_BYTES, &data, &n, err)) return NULL;
    const int32_t *h = (const int32_t *)data;
    Model *m = NULL;
    if (n < 28 || h[5] < 0) {
        error_set(err, "%s: not a llama2.c checkpoint with tied embeddings", path);
    } else if (make_config(&c, h, err)) {
        m = model_create(&c, ops, false);
        if (n < 28 + tensor_count(&m->params) * sizeof(float)) {
            error_set(err, "%s: %zu bytes are fewer than its header promises", path, n);
            model_free(m);
            m = NULL;
        } else {
            const float *w = (const float *)(data + 28);
            model_set_tensor(m, tensor_find(&m->params, "wte"), w);
            set_layers(m, w + (size_t)h[5] * (size_t)h[0], h[4]);
            model_prepare(m);
        }
    }
    mem_free(data);
    return m;
}
