// test_muon.c - gpt/muon and gpt/optim: what Newton-Schulz makes of a matrix, which matrices are
// taken apart into units, and that neither padding nor neighbours nor batching show in an update.
#include "gpt/muon.h"
#include "gpt/optim.h"
#include "test/arrays.h"
#include "test/tiny_run.h"

#include <math.h>
#include <string.h>

enum { MOST = 40, STEPS = 5 };

// Singular values of x (rows, cols), rows <= MOST: eigenvalues of x x^T by Jacobi's rotations.
static int singular_values(double *out, const float *x, int rows, int cols) {
    double a[MOST][MOST];
    for (int i = 0; i < rows; i++) {
        for (int j = 0; j < rows; j++) {
            a[i][j] = 0;
            for (int k = 0; k < cols; k++)
                a[i][j] += (double)x[i * cols + k] * (double)x[j * cols + k];
        }
    }
    for (int sweep = 0; sweep < 30; sweep++) {
        for (int p = 0; p < rows; p++) {
            for (int q = p + 1; q < rows; q++) {
                if (fabs(a[p][q]) < 1e-300) continue;
                double angle = 0.5 * atan2(2 * a[p][q], a[q][q] - a[p][p]);
                double c = cos(angle), s = sin(angle);
                for (int k = 0; k < rows; k++) {
                    double u = a[p][k], v = a[q][k];
                    a[p][k] = c * u - s * v, a[q][k] = s * u + c * v;
                }
                for (int k = 0; k < rows; k++) {
                    double u = a[k][p], v = a[k][q];
                    a[k][p] = c * u - s * v, a[k][q] = s * u + c * v;
                }
            }
        }
    }
    for (int i = 0; i < rows; i++)
        out[i] = sqrt(fmax(0, a[i][i]));
    return rows;
}

static MuonGroup group(int n, int units, int rows, int cols) {
    return (MuonGroup){
        .n = n, .units = units, .rows = rows, .cols = cols, .aspect = 1, .compute = TYPE_F32};
}

static size_t size_of(const MuonGroup *g) {
    return (size_t)g->n * (size_t)g->units * (size_t)g->rows * (size_t)g->cols;
}

static void orthogonalize(TestCtx *t, float *x, const MuonGroup *g) {
    float *scratch = floats_new(muon_scratch(g));  // NaN: nothing may be read before it is written
    muon_orthogonalize(ops_cpu(), x, scratch, g, STEPS);
    floats_free(t, scratch);
}

// The polynomial sends [0.003, 1] into about [0.68, 1.13] in five steps.
static void singular_values_come_near_one(TestCtx *t) {
    static const int shape[][2] = {{1, 1}, {1, 30}, {8, 8}, {12, 31}, {31, 12}, {40, 40}};
    for (size_t i = 0; i < sizeof shape / sizeof shape[0]; i++) {
        MuonGroup g = group(1, 1, shape[i][0], shape[i][1]);
        float *x = floats_noise(size_of(&g), i + 1, 3);
        double before[MOST], after[MOST];
        singular_values(before, x, g.rows, g.cols);
        orthogonalize(t, x, &g);
        int n = singular_values(after, x, g.rows, g.cols), near = 0;
        int rank = min_int(g.rows, g.cols);
        for (int k = 0; k < n; k++)
            near += after[k] > 0.65 && after[k] < 1.2;
        // A square matrix of noise has a few values too small for five steps.
        int want = g.rows == g.cols ? rank - rank / 8 : rank;
        CHECK_MSG(t, near >= want && near <= rank, "%d x %d: %d of %d near 1", g.rows, g.cols, near,
                  rank);
        floats_free(t, x);
    }
}

static void transpose(float *out, const float *x, int rows, int cols) {
    for (int i = 0; i < rows * cols; i++)
        out[i % cols * rows + i / cols] = x[i];
}

static void tall_is_wide_transposed(TestCtx *t) {
    MuonGroup wide = group(1, 1, 9, 24), tall = group(1, 1, 24, 9);
    float *x = floats_noise(216, 1, 1), *y = floats_new(216), *back = floats_new(216);
    transpose(y, x, 9, 24);
    orthogonalize(t, x, &wide);
    orthogonalize(t, y, &tall);
    transpose(back, y, 24, 9);
    CHECK_CLOSE(t, back, x, .what = "transposed", .n = 216, .rel_tol = 1e-5);
    floats_free(t, x);
    floats_free(t, y);
    floats_free(t, back);
}

// The direction of the update is that of the input: <x, O> is the nuclear norm, within the
// polynomial's error, and the input's scale does not matter.
static void the_scale_of_the_gradient_does_not_matter(TestCtx *t) {
    MuonGroup g = group(1, 1, 10, 20);
    float *x = floats_noise(200, 5, 1), *y = floats_new(200), *o = floats_new(200);
    double before[MOST], nuclear = 0, inner = 0;
    singular_values(before, x, 10, 20);
    for (int i = 0; i < 10; i++)
        nuclear += before[i];
    for (int i = 0; i < 200; i++)
        o[i] = x[i], y[i] = 1e12f * x[i];
    orthogonalize(t, o, &g);
    for (int i = 0; i < 200; i++)
        inner += (double)x[i] * (double)o[i];
    CHECK_MSG(t, inner > 0.7 * nuclear && inner < 1.2 * nuclear, "%g of %g", inner, nuclear);
    orthogonalize(t, y, &g);
    CHECK_CLOSE(t, y, o, .what = "a large gradient", .n = 200, .rel_tol = 1e-5);
    floats_free(t, x);
    floats_free(t, y);
    floats_free(t, o);
}

static void a_zero_gradient_gives_zero(TestCtx *t) {
    MuonGroup g = group(2, 3, 4, 6);
    float *x = floats_new(144);
    for (int i = 0; i < 144; i++)
        x[i] = i / 24 == 1 ? 1.0f + (float)(i % 7) : 0;  // one unit of six is not zero
    orthogonalize(t, x, &g);
    for (int i = 0; i < 144; i++)
        CHECK(t, i / 24 == 1 ? isfinite(x[i]) && x[i] != 0 : x[i] == 0);
    floats_free(t, x);
}

// Each of n tensors with `units` units comes out as it does alone, to the bit.
static void batches_and_units_do_not_touch_each_other(TestCtx *t) {
    static const int shape[][2] = {{5, 9}, {9, 5}, {8, 8}, {16, 40}};
    for (size_t i = 0; i < sizeof shape / sizeof shape[0]; i++) {
        MuonGroup all = group(3, 4, shape[i][0], shape[i][1]),
                  one = group(1, 1, all.rows, all.cols);
        size_t n = size_of(&one);
        float *x = floats_noise(12 * n, i + 7, 2), *y = floats_new(12 * n);
        memcpy(y, x, 12 * n * sizeof *x);
        orthogonalize(t, x, &all);
        for (size_t k = 0; k < 12; k++) {
            float *unit = floats_new(n);
            memcpy(unit, y + k * n, n * sizeof *y);
            orthogonalize(t, unit, &one);
            CHECK_SAME_BITS(t, x + k * n, unit, n * sizeof *x);
            floats_free(t, unit);
        }
        floats_free(t, x);
        floats_free(t, y);
    }
}

// Rows and columns of zeros stay zero, and the rest is what it is without them.
static void padding_stays_zero(TestCtx *t) {
    static const int shape[][4] = {{5, 12, 8, 12}, {12, 5, 12, 8}, {6, 7, 128, 7}, {3, 20, 8, 24}};
    for (size_t i = 0; i < sizeof shape / sizeof shape[0]; i++) {
        int rows = shape[i][0], cols = shape[i][1], prows = shape[i][2], pcols = shape[i][3];
        MuonGroup g = group(1, 1, rows, cols), padded = group(1, 1, prows, pcols);
        float *x = floats_noise(size_of(&g), i + 1, 1), *p = floats_new(size_of(&padded));
        memset(p, 0, size_of(&padded) * sizeof *p);
        for (int r = 0; r < rows; r++)
            memcpy(p + r * pcols, x + r * cols, (size_t)cols * sizeof *p);
        orthogonalize(t, x, &g);
        orthogonalize(t, p, &padded);
        for (int r = 0; r < prows; r++) {
            for (int c = 0; c < pcols; c++) {
                if (r >= rows || c >= cols) CHECK(t, p[r * pcols + c] == 0);
            }
        }
        for (int r = 0; r < rows; r++) {
            CHECK_CLOSE(t, p + r * pcols, x + r * cols, .what = "row", .n = (size_t)cols,
                        .rel_tol = 1e-5);
        }
        floats_free(t, x);
        floats_free(t, p);
    }
}

static MuonGroup unit_of(const char *settings, const char *name) {
    Config c;
    TensorTable table;
    tiny_config(&c, settings, NULL);
    model_params(&table, &c, sizeof(float));
    int i = tensor_find(&table, name);
    if (i < 0) die("no tensor %s", name);
    MuonGroup g = muon_group(&table.tensor[i].spec, &c);
    tensor_table_free(&table);
    return g;
}

static void expect_unit(TestCtx *t, const char *settings, const char *name, MuonGroup want) {
    MuonGroup g = unit_of(settings, name);
    CHECK_MSG(t,
              g.units == want.units && g.rows == want.rows && g.cols == want.cols &&
                  fabs(g.aspect - want.aspect) < 1e-12,
              "%s: %d units of %d x %d, aspect %g", name, g.units, g.rows, g.cols, g.aspect);
}

// 4 heads of 8, 32 channels, MLP of 48, rank 3 stored as 8.
static void units_are_whole_matrices_or_heads(TestCtx *t) {
    static const char lrkv[] = "attention.type=lrkv attention.rank=3";
    static const char lrkv_head[] = "attention.type=lrkv attention.rank=3 optim.muon_unit=head";
    static const char gqa_head[] = "attention.type=gqa attention.n_kv_head=2 optim.muon_unit=head";
    expect_unit(t, lrkv, "h.1.attn.wq",
                (MuonGroup){.units = 1, .rows = 32, .cols = 32, .aspect = 1});
    expect_unit(t, lrkv, "h.0.attn.ws_k",
                (MuonGroup){.units = 1, .rows = 8, .cols = 32, .aspect = 1});
    expect_unit(t, lrkv, "h.0.attn.u_k",
                (MuonGroup){.units = 1, .rows = 32, .cols = 32, .aspect = 1});
    // b is one matrix for each head under either setting: its logical shape is 8 x 3.
    MuonGroup b = {.units = 4, .rows = 8, .cols = 8, .aspect = sqrt(8.0 / 3)};
    expect_unit(t, lrkv, "h.0.attn.b_k", b);
    expect_unit(t, lrkv_head, "h.0.attn.b_k", b);
    expect_unit(t, lrkv_head, "h.0.attn.wq",
                (MuonGroup){.units = 4, .rows = 8, .cols = 32, .aspect = 1});
    expect_unit(t, lrkv_head, "h.0.attn.u_k",
                (MuonGroup){.units = 4, .rows = 8, .cols = 32, .aspect = 1});
    expect_unit(t, lrkv_head, "h.0.attn.wo",
                (MuonGroup){.units = 1, .rows = 32, .cols = 32, .aspect = 1});
    expect_unit(t, gqa_head, "h.0.attn.wk",
                (MuonGroup){.units = 2, .rows = 8, .cols = 32, .aspect = 1});
    expect_unit(t, gqa_head, "h.0.mlp.c_fc",
                (MuonGroup){.units = 1, .rows = 48, .cols = 32, .aspect = sqrt(1.5)});
    expect_unit(t, gqa_head, "h.0.mlp.c_proj",
                (MuonGroup){.units = 1, .rows = 32, .cols = 48, .aspect = 1});
}

// One optimizer step on noise gradients, then the tensor by name, logical order.
static float *stepped(const char *settings, const char *name, size_t *n) {
    Config c;
    tiny_config(&c, settings, "optim.matrix.lr=0.5 optim.matrix.decay=0.1 optim.grad_clip=0");
    Model *m = tiny_model(&c, true);
    Optimizer *o = optim_create(m);
    StepState state;
    model_step_begin(m);
    for (int i = 0; i < m->params.n; i++) {
        const Tensor *x = &m->params.tensor[i];
        float *grad = mem_alloc(spec_logical(&x->spec), sizeof(float));
        test_noise(grad, spec_logical(&x->spec), (uint64_t)i, 1);
        tensor_to_stored(m->grad_arena + x->offset, grad, &x->spec);
        mem_free(grad);
    }
    optim_step(o, 0, 1, &state);
    int i = tensor_find(&m->params, name);
    *n = spec_logical(&m->params.tensor[i].spec);
    float *value = mem_alloc(*n, sizeof(float));
    model_get_tensor(m, i, value);
    optim_free(o);
    model_free(m);
    return value;
}

// value' = value (1 - lr decay) - lr aspect O, where O has singular values near 1: the whole step
// of a tensor, for the first layer of a batch and the last.
static void a_step_moves_by_the_rate_times_the_aspect(TestCtx *t) {
    static const char settings[] = "attention.type=gqa attention.n_kv_head=2 model.n_layer=3";
    static const char *const names[] = {"h.0.mlp.c_fc", "h.2.mlp.c_fc", "h.1.attn.wk"};
    static const int shape[][2] = {{48, 32}, {48, 32}, {16, 32}};
    for (int i = 0; i < 3; i++) {
        Config c;
        size_t n;
        float *after = stepped(settings, names[i], &n);
        tiny_config(&c, settings, NULL);
        Model *m = tiny_model(&c, true);
        float *before = mem_alloc(n, sizeof(float)), *wide = mem_alloc(n, sizeof(float));
        int rows = shape[i][0], cols = shape[i][1], near = 0;
        double aspect = sqrt(fmax(1, (double)rows / cols)), values[MOST];
        model_get_tensor(m, tensor_find(&m->params, names[i]), before);
        for (size_t k = 0; k < n; k++)
            before[k] = (float)((0.95 * (double)before[k] - (double)after[k]) / (0.5 * aspect));
        bool tall = rows > cols;
        if (tall) transpose(wide, before, rows, cols);
        int rank =
            singular_values(values, tall ? wide : before, min_int(rows, cols), max_int(rows, cols));
        for (int k = 0; k < rank; k++)
            near += values[k] > 0.65 && values[k] < 1.2;
        CHECK_MSG(t, near == rank, "%s: %d of %d near 1", names[i], near, rank);
        // Along the tensor's own gradient: noise of its index.
        double inner = 0, square = 0;
        test_noise(wide, n, (uint64_t)tensor_find(&m->params, names[i]), 1);
        for (size_t k = 0; k < n; k++) {
            inner += (double)before[k] * (double)wide[k];
            square += (double)wide[k] * (double)wide[k];
        }
        CHECK_MSG(t, inner > 0.6 * sqrt(square * rank), "%s: turned by %g", names[i],
                  inner / sqrt(square * rank));
        model_free(m);
        mem_free(before);
        mem_free(wide);
        mem_free(after);
    }
}

// A layer's step does not depend on how many layers are updated together with it. (The gradient is
// noise of the tensor's index, which is the same in both; so is the initial value.)
static void layers_are_updated_as_if_alone(TestCtx *t) {
    FOR_EACH_TINY(v) {
        size_t n, m;
        Buf three = {0};
        buf_printf(&three, "%s model.n_layer=3", v->settings);
        Buf one = {0};
        buf_printf(&one, "%s model.n_layer=1", v->settings);
        float *a = stepped(three.text, "h.0.mlp.c_fc", &n);
        float *b = stepped(one.text, "h.0.mlp.c_fc", &m);
        CHECK(t, n == m);
        CHECK_SAME_BITS(t, a, b, n * sizeof *a);
        mem_free(a);
        mem_free(b);
        buf_free(&three);
        buf_free(&one);
    }
}

static void products_may_be_bf16(TestCtx *t) {
    Config c;
    tiny_config(&c, NULL, "optim.muon_compute=bf16");
    TensorTable table;
    model_params(&table, &c, sizeof(float));
    MuonGroup g = muon_group(&table.tensor[tensor_find(&table, "h.0.mlp.c_fc")].spec, &c);
    CHECK(t, g.compute == TYPE_BF16);
    MuonGroup half = group(1, 1, 12, 31), full = half;
    half.compute = TYPE_BF16;
    float *x = floats_noise(12 * 31, 3, 1), *y = floats_new(12 * 31);
    memcpy(y, x, 12 * 31 * sizeof(float));
    orthogonalize(t, x, &half);
    orthogonalize(t, y, &full);
    CHECK_CLOSE(t, x, y, .what = "bf16", .n = 12 * 31, .rel_tol = 5e-2);
    CHECK(t, memcmp(x, y, 12 * 31 * sizeof(float)) != 0);
    floats_free(t, x);
    floats_free(t, y);
    tensor_table_free(&table);
}

TEST_MAIN({"products_may_be_bf16", products_may_be_bf16},
          {"singular_values_come_near_one", singular_values_come_near_one},
          {"tall_is_wide_transposed", tall_is_wide_transposed},
          {"the_scale_of_the_gradient_does_not_matter", the_scale_of_the_gradient_does_not_matter},
          {"a_zero_gradient_gives_zero", a_zero_gradient_gives_zero},
          {"batches_and_units_do_not_touch_each_other", batches_and_units_do_not_touch_each_other},
          {"padding_stays_zero", padding_stays_zero},
          {"units_are_whole_matrices_or_heads", units_are_whole_matrices_or_heads},
          {"a_step_moves_by_the_rate_times_the_aspect", a_step_moves_by_the_rate_times_the_aspect},
          {"layers_are_updated_as_if_alone", layers_are_updated_as_if_alone})
