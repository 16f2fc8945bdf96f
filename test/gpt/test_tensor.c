// test_tensor.c - gpt/tensor: padding there and back, initial values, and where a table puts
// things.
#include "gpt/tensor.h"
#include "test/arrays.h"

#include <math.h>
#include <string.h>

static const TensorSpec plain = {.name = "plain", .dim = {5, 7}};
static const TensorSpec vector = {.name = "vector", .dim = {9, 0}};
static const TensorSpec wide = {.name = "wide", .dim = {5, 7}, .stored = {5, 8}};
static const TensorSpec tall = {.name = "tall", .dim = {5, 7}, .stored = {128, 7}};
static const TensorSpec grouped = {
    .name = "grouped", .dim = {12, 3}, .stored = {32, 3}, .groups = 4};  // 3 -> 8 rows each
static const TensorSpec both = {.name = "both", .dim = {6, 3}, .stored = {16, 8}, .groups = 2};
static const TensorSpec *const specs[] = {&plain, &vector, &wide, &tall, &grouped, &both};
enum { N_SPECS = sizeof specs / sizeof specs[0] };

static void sizes_count_with_and_without_padding(TestCtx *t) {
    static const size_t logical[N_SPECS] = {35, 9, 35, 35, 36, 18},
                        stored[N_SPECS] = {35, 9, 40, 896, 96, 128};
    for (int i = 0; i < N_SPECS; i++) {
        CHECK_MSG(t, spec_logical(specs[i]) == logical[i], "%s", specs[i]->name);
        CHECK_MSG(t, spec_stored(specs[i]) == stored[i], "%s", specs[i]->name);
    }
    CHECK(t, spec_rows(&vector) == 9 && spec_cols(&vector) == 1);
    CHECK(t, spec_rows(&both) == 16 && spec_cols(&both) == 8);
    // 2^31 and more elements are counted, not wrapped.
    TensorSpec big = {.dim = {200000, 16384}, .stored = {200064, 16384}};
    CHECK(t, spec_logical(&big) == (size_t)200000 * 16384);
    CHECK(t, spec_stored(&big) == (size_t)200064 * 16384);
    CHECK(t, elem_bytes(TYPE_FX, 2) == 2 && elem_bytes(TYPE_FX, 4) == 4);
    CHECK(t, elem_bytes(TYPE_F32, 2) == 4 && elem_bytes(TYPE_BF16, 4) == 2);
}

static void padding_is_zero_and_comes_off_again(TestCtx *t) {
    for (int i = 0; i < N_SPECS; i++) {
        const TensorSpec *s = specs[i];
        size_t n = spec_logical(s), full = spec_stored(s), nonzero = 0;
        float *logical = floats_noise(n, (uint64_t)i, 1), *stored = floats_noise(full, 99, 1);
        float *back = floats_new(n);
        tensor_to_stored(stored, logical, s);
        for (size_t k = 0; k < full; k++)
            nonzero += stored[k] != 0;
        CHECK_MSG(t, nonzero == n, "%s: %zu values, %zu stored ones", s->name, n, nonzero);
        tensor_to_logical(back, stored, s);
        CHECK_SAME_BITS(t, back, logical, n * sizeof(float));
        floats_free(t, logical);
        floats_free(t, stored);
        floats_free(t, back);
    }
}

static void groups_are_padded_each_by_itself(TestCtx *t) {
    float logical[36], stored[96];
    for (int i = 0; i < 36; i++)
        logical[i] = (float)(i + 1);
    tensor_to_stored(stored, logical, &grouped);
    for (int row = 0; row < 32; row++) {
        for (int col = 0; col < 3; col++) {
            int group = row / 8, in = row % 8;
            float want = in < 3 ? (float)((group * 3 + in) * 3 + col + 1) : 0;
            CHECK_MSG(t, stored[row * 3 + col] == want, "row %d", row);
        }
    }
}

static Tensor named(const char *name, TensorSpec s) {
    Tensor x = {.spec = s};
    snprintf(x.name, sizeof x.name, "%s", name);
    return x;
}

static float *initial(const Tensor *x, uint64_t seed) {
    float *values = floats_new(spec_logical(&x->spec));
    tensor_init(values, x, seed);
    return values;
}

// An element of one tensor is the same in a tensor of another shape, padding, kind or layer.
static void initial_values_depend_on_seed_name_and_element_alone(TestCtx *t) {
    TensorSpec s = {.dim = {40, 50}, .init = INIT_NORMAL, .std = 0.5f};
    TensorSpec other = {.dim = {10, 70},
                        .stored = {128, 72},
                        .groups = 2,
                        .blocks = 5,
                        .kind = KIND_MATRIX,
                        .init = INIT_NORMAL,
                        .std = 0.5f};
    Tensor a = named("h.0.attn.wq", s), b = named("h.0.attn.wq", other),
           c = named("h.0.attn.wk", s);
    b.layer = 7, b.offset = 12345, b.bytes_at = 999;
    set_threads(1);
    float *x = initial(&a, 3);
    set_threads(3);
    float *y = initial(&b, 3), *again = initial(&a, 3), *name = initial(&c, 3),
          *seed = initial(&a, 4);
    set_threads(0);
    CHECK_SAME_BITS(t, x, again, 2000 * sizeof(float));
    CHECK_SAME_BITS(t, x, y, 700 * sizeof(float));
    int same = 0;
    for (int i = 0; i < 2000; i++)
        same += x[i] == name[i] || x[i] == seed[i];
    CHECK_MSG(t, same == 0, "%d values are those of another name or seed", same);
    double sum = 0, square = 0;
    for (int i = 0; i < 2000; i++)
        sum += (double)x[i], square += (double)x[i] * (double)x[i];
    CHECK(t, fabs(sum / 2000) < 4 * 0.5 / sqrt(2000));
    CHECK(t, fabs(sqrt(square / 2000) - 0.5) < 4 * 0.5 / sqrt(4000));
    float *all[] = {x, y, again, name, seed};
    for (int i = 0; i < 5; i++)
        floats_free(t, all[i]);
}

static void zeros_and_ones_are_what_they_say(TestCtx *t) {
    TensorSpec s = {.dim = {3, 5}, .init = INIT_ZERO};
    Tensor zero = named("a", s);
    s.init = INIT_ONE;
    Tensor one = named("a", s);
    float *x = initial(&zero, 1), *y = initial(&one, 1);
    for (int i = 0; i < 15; i++)
        CHECK(t, x[i] == 0 && y[i] == 1);
    floats_free(t, x);
    floats_free(t, y);
}

static void tables_align_every_tensor_that_does_not_join(TestCtx *t) {
    TensorSpec rows[] = {{.name = "a", .dim = {3, 5}},
                         {.name = "b", .dim = {3, 5}, .join = true},
                         {.name = "c", .dim = {7, 0}, .type = TYPE_F32},
                         {.name = "d", .dim = {2, 2}, .stored = {128, 2}}};
    for (size_t elem_size = 2; elem_size <= 4; elem_size += 2) {
        TensorTable table = {.elem_size = elem_size};
        for (int layer = 0; layer < 3; layer++) {
            char prefix[16];
            snprintf(prefix, sizeof prefix, "h.%d.", layer);
            tensor_table_add(&table, prefix, layer, rows, 4);
        }
        CHECK(t, table.n == 12);
        CHECK(t, tensor_find(&table, "h.2.c") == 10 && tensor_find(&table, "h.3.c") == -1);
        CHECK(t, tensor_find(&table, "c") == -1 && tensor_find(&table, "") == -1);
        CHECK(t, tensor_count(&table) == 3 * (15 + 15 + 7 + 4));
        size_t end = 0, bytes_end = 0;
        for (int i = 0; i < table.n; i++) {
            const Tensor *x = &table.tensor[i];
            bool join = x->spec.join;
            size_t at = join ? end : round_up(end, TENSOR_ALIGN);
            size_t bytes_at = join ? bytes_end : round_up(bytes_end, 256);
            CHECK_MSG(t, x->offset == at && x->bytes_at == bytes_at, "%s", x->name);
            CHECK(t, x->layer == i / 4);
            end = x->offset + spec_stored(&x->spec);
            bytes_end = x->bytes_at + spec_stored(&x->spec) * elem_bytes(x->spec.type, elem_size);
        }
        CHECK(t, table.elements == end && table.bytes == bytes_end);
        tensor_table_free(&table);
        CHECK(t, table.tensor == NULL && table.n == 0);
    }
}

static void bf16_rounds_to_nearest_even(TestCtx *t) {
    static const struct {
        float x;
        uint16_t want;
    } known[] = {{1, 0x3F80},
                 {1 + 0x1p-8f, 0x3F80},             // a tie, down to even
                 {1 + 0x1p-8f + 0x1p-20f, 0x3F81},  // above the tie
                 {1 + 0x1p-7f + 0x1p-8f, 0x3F82},   // a tie, up to even
                 {-1 - 0x1p-7f - 0x1p-8f, 0xBF82},
                 {3.4e38f, 0x7F80},  // the largest bf16 lies below
                 {INFINITY, 0x7F80},
                 {0x1p-149f, 0},
                 {-0.0f, 0x8000}};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        uint16_t got = bf16_from_f32(known[i].x);
        CHECK_MSG(t, got == known[i].want, "%a: %04x", (double)known[i].x, got);
    }
    // Every bf16 survives, and a NaN stays one even when its upper half alone would be infinity.
    for (uint32_t u = 0; u < 65536; u++) {
        float x = bf16_to_f32((uint16_t)u);
        if (isnan(x))
            CHECK(t, isnan(bf16_to_f32(bf16_from_f32(x))));
        else
            CHECK(t, bf16_from_f32(x) == u);
    }
    uint32_t quiet = 0x7F800001u;
    float nan;
    memcpy(&nan, &quiet, sizeof nan);
    CHECK(t, isnan(bf16_to_f32(bf16_from_f32(nan))));
}

TEST_MAIN({"sizes_count_with_and_without_padding", sizes_count_with_and_without_padding},
          {"padding_is_zero_and_comes_off_again", padding_is_zero_and_comes_off_again},
          {"groups_are_padded_each_by_itself", groups_are_padded_each_by_itself},
          {"initial_values_depend_on_seed_name_and_element_alone",
           initial_values_depend_on_seed_name_and_element_alone},
          {"zeros_and_ones_are_what_they_say", zeros_and_ones_are_what_they_say},
          {"tables_align_every_tensor_that_does_not_join",
           tables_align_every_tensor_that_does_not_join},
          {"bf16_rounds_to_nearest_even", bf16_rounds_to_nearest_even})
