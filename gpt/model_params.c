// model_params.c - which tensors a config means. Attention's own rows come from the variant.
#include "gpt/model_impl.h"

#include <math.h>
#include <string.h>

static TensorSpec matrix_row(const char *name, int rows, int cols, float std) {
    return (TensorSpec){.name = name,
                        .dim = {rows, cols},
                        .kind = KIND_MATRIX,
                        .std = std,
                        .init = std > 0 ? INIT_NORMAL : INIT_ZERO};
}

static TensorSpec vector_row(const char *name, int n, InitKind init) {
    return (TensorSpec){
        .name = name, .dim = {n, 0}, .kind = KIND_VECTOR, .type = TYPE_F32, .init = init};
}

static int norm_rows(TensorSpec *s, const Config *c, const char *weight, const char *bias) {
    int n = 0;
    if (!c->model.norm_weight) return n;
    s[n++] = vector_row(weight, c->model.n_embd, INIT_ONE);
    if (c->model.norm == NORM_LAYER && c->model.bias) {
        s[n++] = vector_row(bias, c->model.n_embd, INIT_ZERO);
    }
    return n;
}

static int mlp_rows(TensorSpec *s, const Config *c, const AttnDims *d) {
    int C = c->model.n_embd, F = c->model.ffn_dim, n = 0;
    int fc = c->model.activation == ACT_SWIGLU ? 2 * F : F;
    float std_out = config_proj_std(c, F);
    s[n++] = matrix_row("mlp.c_fc", fc, C, attn_std_in(d, C));
    s[n++] = matrix_row("mlp.c_proj", C, F, std_out);
    if (c->model.bias) {
        s[n++] = vector_row("mlp.c_fc_bias", fc, INIT_ZERO);
        s[n++] = vector_row("mlp.c_proj_bias", C, INIT_ZERO);
    }
    return n;
}

static void layer_rows(TensorTable *t, const Config *c, const AttnDims *d, int layer) {
    TensorSpec s[ATTN_MAX_TENSORS + 8] = {{0}};
    char prefix[TENSOR_NAME_MAX], attn_prefix[TENSOR_NAME_MAX];
    snprintf(prefix, sizeof prefix, "h.%d.", layer);
    snprintf(attn_prefix, sizeof attn_prefix, "h.%d.attn.", layer);
    tensor_table_add(t, prefix, layer, s, norm_rows(s, c, "ln_1.weight", "ln_1.bias"));
    memset(s, 0, sizeof s);
    tensor_table_add(t, attn_prefix, layer, s, attention_find(c->attention.type)->params(s, d));
    memset(s, 0, sizeof s);
    tensor_table_add(t, prefix, layer, s, norm_rows(s, c, "ln_2.weight", "ln_2.bias"));
    memset(s, 0, sizeof s);
    tensor_table_add(t, prefix, layer, s, mlp_rows(s, c, d));
}

void model_params(TensorTable *t, const Config *c, size_t elem_size) {
    *t = (TensorTable){.elem_size = elem_size};
    AttnDims d = config_attn_dims(c, 1, 1, 1);
    TensorSpec s[4] = {{0}};
    int C = c->model.n_embd, V = c->model.vocab_size, n = 0;
    TensorSpec table = {.dim = {V, C}, .stored = {config_padded_vocab(c), C}, .init = INIT_NORMAL};
    s[n] = table;
    s[n].name = "wte", s[n].kind = KIND_EMBED, s[n++].std = (float)c->model.embed_std;
    if (c->model.position == POSITION_LEARNED) {
        s[n] = (TensorSpec){.name = "wpe", .dim = {c->model.seq_len, C}, .kind = KIND_EMBED};
        s[n].init = INIT_NORMAL, s[n++].std = (float)c->model.embed_std;
    }
    tensor_table_add(t, "", -1, s, n);
    for (int l = 0; l < c->model.n_layer; l++)
        layer_rows(t, c, &d, l);
    memset(s, 0, sizeof s);
    n = norm_rows(s, c, "ln_f.weight", "ln_f.bias");
    if (!c->model.tied_embeddings) {
        s[n] = table;
        s[n].name = "lm_head", s[n].kind = KIND_HEAD, s[n].std = (float)c->model.head_std;
        s[n].init = c->model.head_std > 0 ? INIT_NORMAL : INIT_ZERO;
        n++;
    }
    tensor_table_add(t, "", -1, s, n);
    t->elements = round_up(t->elements, TENSOR_ALIGN);
    t->bytes = round_up(t->bytes, 256);
}

// Row numbers follow from the order above; layers are alike, so layer 0's suffice.
LayerRows model_layer_rows(const Model *m, int layer) {
    const Config *c = &m->cfg;
    int base = m->layer_first + layer * m->layer_rows;
    int norm = c->model.norm_weight ? 1 + (c->model.norm == NORM_LAYER && c->model.bias) : 0;
    int mlp = base + m->layer_rows - (c->model.bias ? 4 : 2), ln_2 = mlp - norm;
    return (LayerRows){
        .ln_1_weight = norm > 0 ? base : -1,
        .ln_1_bias = norm > 1 ? base + 1 : -1,
        .attn = base + norm,
        .ln_2_weight = norm > 0 ? ln_2 : -1,
        .ln_2_bias = norm > 1 ? ln_2 + 1 : -1,
        .c_fc = mlp,
        .c_proj = mlp + 1,
        .c_fc_bias = c->model.bias ? mlp + 2 : -1,
        .c_proj_bias = c->model.bias ? mlp + 3 : -1,
    };
}
