// plan.c - counts from the tables: the parameter rows, the variant's rows and the arena sizes that
// the model itself allocates by. A number that is printed here is never computed by a second
// formula, except those that have no other source (FLOPs).
#include "gpt/plan.h"

#include "gpt/muon.h"
#include "gpt/optim.h"

#include <string.h>

// Padded rows count for the vocabulary, padded ranks don't: the latter never hold a value.
static size_t counted(const TensorSpec *s) {
    bool vocabulary = s->kind == KIND_EMBED || s->kind == KIND_HEAD;
    return vocabulary ? spec_stored(s) : spec_logical(s);
}

static bool in_products(const Config *c, const Tensor *t) {
    if (t->spec.kind == KIND_MATRIX || t->spec.kind == KIND_HEAD) return true;
    return c->model.tied_embeddings && strcmp(t->name, "wte") == 0;
}

static void count_parameters(Plan *p) {
    for (int i = 0; i < p->table.n; i++) {
        const Tensor *t = &p->table.tensor[i];
        size_t n = counted(&t->spec);
        p->kind_tensors[t->spec.kind]++;
        p->kind_parameters[t->spec.kind] += n;
        p->parameters += n;
        if (t->spec.kind != KIND_EMBED && t->spec.kind != KIND_HEAD) p->non_embedding += n;
        if (in_products(&p->cfg, t)) p->in_products += n;
    }
    p->unpadded = tensor_count(&p->table);
}

// Width of the key that a query meets in training.
static int key_width(const AttnDims *d) {
    return d->HS + d->HR;
}

// Elements of a layer's derived matrices.
static double derived_elements(const Config *c, const AttnDims *d) {
    const Attention *a = attention_find(c->attention.type);
    TensorSpec s[ATTN_MAX_TENSORS] = {{0}};
    int n = a->derived ? a->derived(s, d) : 0;
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += s[i].dim[1] ? (double)spec_stored(&s[i]) : 0;
    return sum;
}

// Newton-Schulz: X X^T, its square, and the square times X, for each unit of the tensor. Counted as
// whole products, also where a device sums only one triangle of the two symmetric ones.
static double muon_flops(const TensorSpec *s, const Config *c) {
    MuonGroup g = muon_group(s, c);
    double small = min_int(g.rows, g.cols), large = max_int(g.rows, g.cols);
    double one = 4 * small * small * large + 2 * small * small * small;
    return one * g.units * c->optim.muon_steps;
}

static void count_flops(Plan *p) {
    const Config *c = &p->cfg;
    AttnDims d = config_attn_dims(c, 1, c->model.seq_len, c->model.seq_len);
    double derived = derived_elements(c, &d), N = (double)p->in_products, executed = 0;
    double heads = (double)c->model.n_layer * d.NH, T = d.T, K = key_width(&d), V = d.HV;
    PlanFlops *f = &p->flops;
    for (int i = 0; i < p->table.n; i++) {
        const Tensor *t = &p->table.tensor[i];
        if (muon_takes(&t->spec, c)) f->optimizer_step += muon_flops(&t->spec, c);
        // Where tokens meet derived matrices, the raw rows are only what those are made of.
        if (in_products(c, t) && !(derived > 0 && t->spec.raw))
            executed += (double)spec_stored(&t->spec);
    }
    executed += derived * c->model.n_layer;
    // W_h = Ws + U_h B_h of every layer, and back: the gradients of both factors.
    f->optimizer_step += 6 * derived * c->model.n_layer * attn_stored_rank(d.R);
    f->causal = 6 * N + 3 * heads * (K + V) * T;
    f->full = 6 * N + 6 * heads * (K + V) * T;
    f->executed = 6 * executed + heads * (8 * K + 6 * V) * (T + 1) / 2;
}

static void count_bytes(Plan *p, const Ops *ops) {
    const Config *c = &p->cfg;
    int B = p->micro_batch, T = c->model.seq_len;
    AttnDims d = config_attn_dims(c, B, T, T);
    PlanBytes *b = &p->bytes;
    size_t table = (size_t)attention_rope_width(&d) * 2 * (size_t)T * sizeof(float);
    b->parameters = p->table.bytes;
    b->gradients = p->table.elements * sizeof(float);
    b->optimizer = optim_bytes(c, ops);
    b->activations = model_acts_bytes(c, ops, B, T);
    b->prepared = model_packed_bytes(c, ops, true);
    b->derived = model_derived_bytes(c, ops, true);
    b->tables = table + 2 * sizeof(int) * (size_t)(c->batch.tokens / p->ranks);
    b->total = b->parameters + b->gradients + b->optimizer + b->activations + b->prepared +
               b->derived + b->tables;
    // Generation works on the factors, whatever path training takes.
    Config g = *c;
    TensorTable rows;
    g.attention.path = PATH_FACTORED;
    model_params(&rows, &g, ops->elem_size);
    p->generate_bytes = rows.bytes + model_packed_bytes(&g, ops, false) +
                        model_derived_bytes(&g, ops, false) + cache_bytes(&g, ops, 1, T) + table;
    tensor_table_free(&rows);
}

static void count_cache(Plan *p, const Ops *ops) {
    const Config *c = &p->cfg;
    int T = c->model.seq_len;
    AttnDims d = config_attn_dims(c, 1, T, T);
    PlanCache *k = &p->cache;
    k->values = attention_cache_values(attention_find(c->attention.type), &d);
    k->type = elem_stored(d.cache_type, ops->elem_size);
    k->token_layer_bytes = k->values * elem_bytes(k->type, ops->elem_size);
    k->sequence_bytes = k->token_layer_bytes * (size_t)T * (size_t)c->model.n_layer;
    k->sequence_allocated = cache_bytes(c, ops, 1, T);
    k->share_of_mha = (double)k->values / (2.0 * d.NH * d.HS);
}

bool plan_compute(Plan *out, const Config *c, const Ops *ops, int ranks, double tokens_per_second,
                  Error *err) {
    *out = (Plan){.cfg = *c, .device = ops->name, .ranks = ranks};
    if (!optim_check(c, ops, err)) return false;
    int64_t sequences = c->batch.tokens / c->model.seq_len;
    out->micro_batch = config_micro_batch(c, ranks);
    if (!out->micro_batch || sequences % ((int64_t)ranks * out->micro_batch))
        return error_set(err,
                         "batch.tokens %lld are %lld sequences of model.seq_len %d, which %d ranks "
                         "with batch.micro_batch %d cannot share evenly",
                         (long long)c->batch.tokens, (long long)sequences, c->model.seq_len, ranks,
                         c->batch.micro_batch);
    out->micro_steps = sequences / ranks / out->micro_batch;
    out->tokens = c->train.steps * c->batch.tokens;
    if (tokens_per_second > 0) out->seconds = (double)out->tokens / tokens_per_second;
    model_params(&out->table, c, ops->elem_size);
    count_parameters(out);
    count_flops(out);
    count_bytes(out, ops);
    count_cache(out, ops);
    return true;
}

void plan_free(Plan *p) {
    tensor_table_free(&p->table);
}
