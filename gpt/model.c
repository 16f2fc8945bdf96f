// model.c - a model's memory: parameters, gradients, prepared weights, derived tensors, RoPE table.
#include "gpt/model_impl.h"

#include <assert.h>
#include <math.h>
#include <string.h>

const float *model_vector(const Model *m, int row) {
    return row < 0 ? NULL : (const float *)m->weight[row].data;
}

float *model_grad(const Model *m, int row) {
    return row < 0 || !m->grad_arena ? NULL : m->grad_arena + m->params.tensor[row].offset;
}

const Weight *model_head(const Model *m) {
    int row = tensor_find(&m->params, m->cfg.model.tied_embeddings ? "wte" : "lm_head");
    return &m->weight[row];
}

NormArgs model_norm_args(const Model *m, size_t N) {
    return (NormArgs){(NormKind)m->cfg.model.norm, N, m->C, (float)m->cfg.model.norm_eps};
}

// Rows of the joined run that starts at row i; 0 when i joins the row before.
static int joined_rows(const TensorTable *t, int i) {
    if (t->tensor[i].spec.join) return 0;
    int rows = spec_rows(&t->tensor[i].spec);
    for (int j = i + 1; j < t->n && t->tensor[j].spec.join; j++)
        rows += spec_rows(&t->tensor[j].spec);
    return rows;
}

// Whether products read this row, so that it needs prepared copies.
static bool is_prepared(const Config *c, const TensorSpec *s) {
    if (s->join || s->raw) return false;
    if (s->kind == KIND_MATRIX || s->kind == KIND_HEAD) return true;
    return c->model.tied_embeddings && s->kind == KIND_EMBED &&
           s->stored[0] > 0;  // wte as the head
}

static size_t packed_bytes(const Ops *ops, int OC, int IC, ElemType compute, bool training) {
    return round_up(ops->weight_bytes(OC, IC, compute), 256) * (training ? 2 : 1);
}

// Merged weights only pay in training; the cache works on the factors.
static Config config_for(const Config *c, bool training) {
    Config used = *c;
    if (!training) used.attention.path = PATH_FACTORED;
    return used;
}

size_t model_packed_bytes(const Config *c, const Ops *ops, bool training) {
    TensorTable t;
    Config used = config_for(c, training);
    model_params(&t, &used, ops->elem_size);
    size_t bytes = 0;
    for (int i = 0; i < t.n; i++) {
        const TensorSpec *s = &t.tensor[i].spec;
        if (!is_prepared(c, s)) continue;
        bytes += packed_bytes(ops, joined_rows(&t, i), spec_cols(s), (ElemType)c->train.compute,
                              training);
    }
    tensor_table_free(&t);
    return bytes;
}

// Points w's prepared copies into the arena at *at and moves on.
static void place_packed(Weight *w, const Ops *ops, char **at, bool training) {
    size_t one = round_up(ops->weight_bytes(w->OC, w->IC, w->compute), 256);
    if (one == 0) return;
    w->forward = *at;
    if (training) w->backward = *at + one;
    *at += one * (training ? 2 : 1);
}

static void create_weights(Model *m, bool training) {
    m->weight = mem_alloc((size_t)m->params.n, sizeof(Weight));
    m->packed_bytes = model_packed_bytes(&m->cfg, m->ops, training);
    m->packed_arena = m->ops->alloc(m->packed_bytes);
    char *at = m->packed_arena;
    for (int i = 0; i < m->params.n; i++) {
        const Tensor *t = &m->params.tensor[i];
        int rows = joined_rows(&m->params, i);
        m->weight[i] = (Weight){.data = (floatX *)(m->param_arena + t->bytes_at),
                                .OC = rows ? rows : spec_rows(&t->spec),
                                .IC = spec_cols(&t->spec),
                                .compute = (ElemType)m->cfg.train.compute};
        if (is_prepared(&m->cfg, &t->spec)) place_packed(&m->weight[i], m->ops, &at, training);
    }
}

// Bytes of one derived tensor: values, prepared copies unless it is raw, gradient.
static size_t derived_row_bytes(const Config *c, const Ops *ops, bool training,
                                const TensorSpec *s) {
    size_t bytes = round_up(spec_stored(s) * elem_bytes(s->type, ops->elem_size), 256);
    if (!s->raw) {
        bytes +=
            packed_bytes(ops, spec_rows(s), spec_cols(s), (ElemType)c->train.compute, training);
    }
    return bytes + (training ? round_up(spec_stored(s) * sizeof(float), 256) : 0);
}

static int derived_rows(TensorSpec *s, const Config *c) {
    AttnDims d = config_attn_dims(c, 1, 1, 1);
    const Attention *a = attention_find(c->attention.type);
    return a->derived ? a->derived(s, &d) : 0;
}

size_t model_derived_bytes(const Config *c, const Ops *ops, bool training) {
    TensorSpec s[ATTN_MAX_TENSORS] = {{0}};
    Config used = config_for(c, training);
    int n = derived_rows(s, &used);
    size_t bytes = 0;
    for (int i = 0; i < n; i++)
        bytes += derived_row_bytes(c, ops, training, &s[i]);
    return bytes * (size_t)c->model.n_layer;
}

static void create_derived(Model *m, bool training) {
    TensorSpec s[ATTN_MAX_TENSORS] = {{0}};
    m->n_derived = derived_rows(s, &m->cfg);
    if (!m->n_derived) return;
    size_t count = (size_t)m->L * (size_t)m->n_derived;
    m->derived_bytes = model_derived_bytes(&m->cfg, m->ops, training);
    m->derived = mem_alloc(count, sizeof(Weight));
    m->dderived = mem_alloc(count, sizeof(float *));
    m->derived_arena = m->ops->alloc(m->derived_bytes);
    char *at = m->derived_arena;
    for (size_t k = 0; k < count; k++) {
        const TensorSpec *row = &s[k % (size_t)m->n_derived];
        m->derived[k] = (Weight){.data = (floatX *)at,
                                 .OC = spec_rows(row),
                                 .IC = spec_cols(row),
                                 .compute = (ElemType)m->cfg.train.compute};
        at += round_up(spec_stored(row) * elem_bytes(row->type, m->ops->elem_size), 256);
        if (!row->raw) place_packed(&m->derived[k], m->ops, &at, training);
        if (!training) continue;
        m->dderived[k] = (float *)at;
        at += round_up(spec_stored(row) * sizeof(float), 256);
    }
}

// cos, sin of position * theta^(-2i/width), computed in double. Twice as many rows as positions:
// the unused tokens of a ragged batch stand at most one chunk (<= seq_len) beyond the last
// position.
static void create_rope(Model *m) {
    AttnDims d = config_attn_dims(&m->cfg, 1, 1, 1);
    int half = attention_rope_width(&d) / 2, rows = 2 * m->cfg.model.seq_len;
    if (half == 0) return;
    size_t n = (size_t)rows * (size_t)half * 2;
    float *table = mem_alloc(n, sizeof(float));
    for (int t = 0; t < rows; t++) {
        for (int i = 0; i < half; i++) {
            double angle = t * pow(m->cfg.model.rope_theta, -(double)i / half);
            table[((size_t)t * (size_t)half + (size_t)i) * 2] = (float)cos(angle);
            table[((size_t)t * (size_t)half + (size_t)i) * 2 + 1] = (float)sin(angle);
        }
    }
    m->rope_rows = rows;
    m->rope = m->ops->alloc(n * sizeof(float));
    m->ops->upload_bytes(m->rope, table, n * sizeof(float));
    m->ops->sync();
    mem_free(table);
}

Model *model_create(const Config *c, const Ops *ops, bool training) {
    Model *m = mem_alloc(1, sizeof *m);
    m->cfg = config_for(c, training);
    m->ops = ops;
    m->attn = attention_find(c->attention.type);
    m->V = c->model.vocab_size, m->Vp = config_padded_vocab(c);
    m->C = c->model.n_embd, m->F = c->model.ffn_dim, m->L = c->model.n_layer,
    m->NH = c->model.n_head;
    model_params(&m->params, &m->cfg, ops->elem_size);
    for (int i = m->params.n - 1; i >= 0; i--) {
        if (m->params.tensor[i].layer == 0) m->layer_first = i, m->layer_rows++;
    }
    m->param_arena = ops->alloc(m->params.bytes);
    if (training) m->grad_arena = ops->alloc(m->params.elements * sizeof(float));
    m->state = ops->alloc(sizeof(StepState));
    create_weights(m, training);
    create_derived(m, training);
    create_rope(m);
    return m;
}

void model_free(Model *m) {
    if (!m) return;
    const Ops *ops = m->ops;
    acts_free(m, m->acts);
    ops->free(m->param_arena);
    ops->free(m->grad_arena);
    ops->free(m->packed_arena);
    ops->free(m->derived_arena);
    ops->free(m->rope);
    ops->free(m->state);
    mem_free(m->weight);
    mem_free(m->derived);
    mem_free(m->dderived);
    tensor_table_free(&m->params);
    mem_free(m);
}

void model_set_tensor(Model *m, int tensor, const float *logical) {
    const Tensor *t = &m->params.tensor[tensor];
    size_t n = spec_stored(&t->spec);
    float *stored = mem_alloc(n, sizeof(float));
    tensor_to_stored(stored, logical, &t->spec);
    char *dst = m->param_arena + t->bytes_at;
    if (t->spec.type == TYPE_FX)
        m->ops->upload((floatX *)dst, stored, n);
    else
        m->ops->upload_bytes(dst, stored, n * sizeof(float));
    m->ops->sync();
    mem_free(stored);
}

void model_get_tensor(const Model *m, int tensor, float *logical) {
    const Tensor *t = &m->params.tensor[tensor];
    size_t n = spec_stored(&t->spec);
    float *stored = mem_alloc(n, sizeof(float));
    const char *src = m->param_arena + t->bytes_at;
    if (t->spec.type == TYPE_FX)
        m->ops->download(stored, (const floatX *)src, n);
    else
        m->ops->download_bytes(stored, src, n * sizeof(float));
    tensor_to_logical(logical, stored, &t->spec);
    mem_free(stored);
}

void model_init(Model *m, uint64_t seed) {
    for (int i = 0; i < m->params.n; i++) {
        float *values = mem_alloc(spec_logical(&m->params.tensor[i].spec), sizeof(float));
        tensor_init(values, &m->params.tensor[i], seed);
        model_set_tensor(m, i, values);
        mem_free(values);
    }
    model_prepare(m);
}

void model_prepare(Model *m) {
    for (int i = 0; i < m->params.n; i++) {
        if (m->weight[i].forward) m->ops->weight_prepare(&m->weight[i]);
    }
    if (!m->n_derived) return;
    AttnDims d = config_attn_dims(&m->cfg, 1, 1, 1);
    for (int l = 0; l < m->L; l++) {
        LayerCall call;
        model_attn_call(&call, m, NULL, &d, l);
        m->attn->prepare(&call.call);
        for (int i = 0; i < m->n_derived; i++) {
            Weight *w = &m->derived[l * m->n_derived + i];
            if (w->forward) m->ops->weight_prepare(w);
        }
    }
}

void model_step_begin(Model *m) {
    m->ops->zero(m->grad_arena, m->params.elements * sizeof(float));
    for (int k = 0; k < m->L * m->n_derived; k++) {
        const Weight *w = &m->derived[k];
        m->ops->zero(m->dderived[k], (size_t)w->OC * (size_t)w->IC * sizeof(float));
    }
    m->ops->step_begin(m->state);
}
