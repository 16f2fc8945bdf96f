// test_bench.c - what bench computes and prints, without a clock: medians, shares, the rule for
// repetitions, tables, JSON. The run of all sections at the end takes the machine's speed for
// nothing but a positive number.
#include "gpt/bench.h"
#include "test/test.h"

#include <cjson/cJSON.h>

#include <math.h>
#include <string.h>

static void median_is_the_middle_or_the_mean_of_two(TestCtx *t) {
    BenchTimes s = {.n = 0};
    CHECK(t, isnan(bench_median(&s)));
    bench_add(&s, 9);
    CHECK(t, bench_median(&s) == 9);
    bench_add(&s, 1);
    CHECK(t, bench_median(&s) == 5);
    bench_add(&s, 2);
    CHECK(t, bench_median(&s) == 2);
    CHECK(t, bench_total(&s) == 12);
    CHECK(t, s.sample[0] == 9);  // the samples keep their order
}

static void samples_beyond_the_room_are_dropped(TestCtx *t) {
    BenchTimes s = {.n = 0};
    for (int i = 0; i < BENCH_SAMPLES + 5; i++)
        bench_add(&s, i);
    CHECK(t, s.n == BENCH_SAMPLES);
    CHECK(t, !bench_more(&s, 1000000, 1e9));
}

static void share_needs_two_numbers_and_a_positive_whole(TestCtx *t) {
    CHECK(t, bench_share(1, 4) == 0.25);
    CHECK(t, isnan(bench_share(1, 0)));
    CHECK(t, isnan(bench_share(NAN, 1)));
    CHECK(t, isnan(bench_share(1, NAN)));
    CHECK(t, isnan(bench_share(1, INFINITY)));
}

static void one_repetition_is_always_due_and_others_while_time_lasts(TestCtx *t) {
    BenchTimes s = {.n = 0};
    CHECK(t, bench_more(&s, 5, 0));
    bench_add(&s, 2);
    CHECK(t, !bench_more(&s, 5, 3.9));
    CHECK(t, bench_more(&s, 5, 4));
    CHECK(t, !bench_more(&s, 1, 4));
    bench_add(&s, 2);
    CHECK(t, bench_more(&s, 3, 6) && !bench_more(&s, 2, 6));
}

static const BenchColumn columns[] = {
    {.key = "name", .head = "name", .kind = BENCH_TEXT},
    {"speed", "GFLOP/s", BENCH_NUMBER, 1e9, 1},
    {"hidden", NULL, BENCH_NUMBER, 1, 0},
    {"note", "note", BENCH_TEXT, 0, 0},
};

static BenchTable two_rows(void) {
    BenchTable table;
    bench_table_open(&table, "things", columns, 4);
    int row = bench_row(&table);
    bench_set_text(&table, row, 0, "a \"b\"");
    bench_set(&table, row, 1, 1.25e9);
    bench_set(&table, row, 2, 7);
    bench_set_text(&table, row, 3, "x");
    row = bench_row(&table);
    bench_set_text(&table, row, 0, "first");
    bench_set_text(&table, row, 0, "longer name");
    return table;
}

static void table_lines_up_and_shows_what_is_missing(TestCtx *t) {
    BenchTable table = two_rows();
    Buf out = {0};
    bench_table_print(&out, &table);
    const char *expected = "name         GFLOP/s  note\n"
                           "a \"b\"            1.2  x\n"
                           "longer name        -  \n";
    CHECK_MSG(t, strcmp(out.text, expected) == 0, "found:\n%s", out.text);
    buf_free(&out);
    bench_table_free(&table);
}

static void table_without_rows_prints_nothing(TestCtx *t) {
    BenchTable table;
    Buf out = {0};
    bench_table_open(&table, "empty", columns, 4);
    bench_table_print(&out, &table);
    CHECK(t, out.n == 0);
    bench_table_json(&out, &table);
    CHECK(t, strcmp(out.text, "\"empty\": []") == 0);
    buf_free(&out);
    bench_table_free(&table);
}

static void table_grows_and_keeps_its_cells(TestCtx *t) {
    BenchTable table;
    bench_table_open(&table, "many", columns, 4);
    for (int i = 0; i < 100; i++)
        bench_set(&table, bench_row(&table), 1, i);
    for (int i = 0; i < 100; i++)
        CHECK(t, bench_get(&table, i, 1) == i && isnan(bench_get(&table, i, 2)));
    bench_table_free(&table);
}

static void json_holds_every_column_and_null_for_what_is_missing(TestCtx *t) {
    BenchTable table = two_rows();
    Buf out = {0};
    buf_printf(&out, "{");
    bench_table_json(&out, &table);
    buf_printf(&out, "}");
    cJSON *root = cJSON_Parse(out.text), *rows = cJSON_GetObjectItem(root, "things");
    CHECK_MSG(t, cJSON_GetArraySize(rows) == 2, "found: %s", out.text);
    cJSON *a = cJSON_GetArrayItem(rows, 0), *b = cJSON_GetArrayItem(rows, 1);
    CHECK(t, strcmp(cJSON_GetStringValue(cJSON_GetObjectItem(a, "name")), "a \"b\"") == 0);
    CHECK(t, cJSON_GetObjectItem(a, "speed")->valuedouble == 1.25e9);
    CHECK(t, cJSON_GetObjectItem(a, "hidden")->valuedouble == 7);
    CHECK(t, cJSON_IsNull(cJSON_GetObjectItem(b, "speed")));
    CHECK(t, strcmp(cJSON_GetStringValue(cJSON_GetObjectItem(b, "note")), "") == 0);
    cJSON_Delete(root);
    buf_free(&out);
    bench_table_free(&table);
}

static void sections_are_parsed_from_a_list(TestCtx *t) {
    unsigned bits = 99;
    Error err = {0};
    CHECK(t, bench_parse_sections("decode,peaks", &bits, &err));
    CHECK(t, bits == (1u << BENCH_DECODE | 1u << BENCH_PEAKS));
    CHECK(t, !bench_parse_sections("gemm,steps", &bits, &err));
    CHECK_ERROR(t, err, "'steps'");
    CHECK(t, !bench_parse_sections("", &bits, &err));
    CHECK(t, bits == (1u << BENCH_DECODE | 1u << BENCH_PEAKS));
}

static void counts_are_parsed_from_a_list(TestCtx *t) {
    int out[3], n = -1;
    Error err = {0};
    CHECK(t, bench_parse_counts("0,1024,7", out, 3, &n, &err) && n == 3);
    CHECK(t, out[0] == 0 && out[1] == 1024 && out[2] == 7);
    CHECK(t, !bench_parse_counts("1,2,3,4", out, 3, &n, &err));
    CHECK_ERROR(t, err, "at most 3");
    CHECK(t, !bench_parse_counts("1,x", out, 3, &n, &err));
    CHECK_ERROR(t, err, "'x'");
    CHECK(t, !bench_parse_counts("-1", out, 3, &n, &err));
    CHECK(t, !bench_parse_counts("99999999999", out, 3, &n, &err));
    CHECK(t, bench_parse_counts("", out, 3, &n, &err) && n == 0);
}

static void compute_types_are_parsed_from_a_list(TestCtx *t) {
    ElemType out[2];
    int n = 0;
    Error err = {0};
    CHECK(t, bench_parse_compute("bf16", out, &n, &err) && n == 1 && out[0] == TYPE_BF16);
    CHECK(t, bench_parse_compute("fp32,bf16", out, &n, &err) && n == 2 && out[0] == TYPE_F32);
    CHECK(t, !bench_parse_compute("fp32,fp32", out, &n, &err));
    CHECK_ERROR(t, err, "twice");
    CHECK(t, !bench_parse_compute("fp16", out, &n, &err));
    CHECK_ERROR(t, err, "'fp16'");
    CHECK(t, !bench_parse_compute("", out, &n, &err));
}

static void resident_memory_has_a_high_water_mark(TestCtx *t) {
    enum { BYTES = 64 << 20 };
    char *p = mem_alloc(BYTES, 1);  // cleared, hence resident
    size_t with = bench_rss_peak();
    CHECK_MSG(t, with >= BYTES, "%zu", with);
    mem_free(p);
    if (!bench_rss_reset()) {
        test_skip(t, "this system cannot reset the high-water mark");
        return;
    }
#ifndef __SANITIZE_ADDRESS__  // which keeps freed memory
    size_t after = bench_rss_peak();
    CHECK_MSG(t, after + BYTES / 2 < with, "%zu after %zu", after, with);
#endif
}

// --- A run of everything on two small models

static void known_peaks(Peaks *out) {
    *out = (Peaks){.fma_flops = 1e9, .bf16_flops = 4e9, .read_bytes = 2e9, .has_bf16 = true};
}

static const char *const small[] = {
    "{\"model\": {\"n_layer\": 2, \"n_embd\": 32, \"n_head\": 2, \"vocab_size\": 100, "
    "\"seq_len\": 24}, \"attention\": {\"type\": \"lrkv\", \"rank\": 4}, "
    "\"batch\": {\"tokens\": 480}}",
    "{\"model\": {\"n_layer\": 1, \"n_embd\": 32, \"n_head\": 2, \"vocab_size\": 100, "
    "\"seq_len\": 64, \"tied_embeddings\": true, \"bias\": true, \"norm\": \"layernorm\", "
    "\"norm_weight\": true, \"position\": \"learned\", \"qk_norm\": false, "
    "\"activation\": \"gelu\"}, \"attention\": {\"type\": \"mha\"}, "
    "\"optim\": {\"matrix\": {\"optimizer\": \"adamw\"}}, \"batch\": {\"tokens\": 640}}",
};

static void open_small(TestCtx *t, Bench *b, Ops *ops) {
    Error err = {0};
    program_threads(1);  // on a busy machine threads wait for each other longer than they work
    *ops = *ops_cpu();
    ops->measure_peaks = known_peaks;
    bench_open(b);
    b->config = mem_alloc(2, sizeof(BenchConfig));
    for (int i = 0; i < 2; i++) {
        snprintf(b->config[i].name, sizeof b->config[i].name, "small-%d", i);
        CHECK_MSG(t, config_parse(&b->config[i].c, small[i], "test", &err), "%s", err.text);
        CHECK_MSG(t, config_finish(&b->config[i].c, &err), "%s", err.text);
    }
    b->n_configs = 2;
    b->compute[0] = TYPE_F32, b->compute[1] = TYPE_BF16, b->n_compute = 2;
    b->ops[0] = b->ops[1] = ops;
    b->sections = ((1u << N_BENCH_SECTIONS) - 1) & ~(1u << BENCH_KERNELS);
    b->depth[0] = 0, b->depth[1] = 10, b->depth[2] = 40, b->n_depths = 3;
    b->batch = 2, b->repeat = 2, b->seconds = 0, b->quiet = true;
}

// Every number of the rows is positive, but for one column.
static void check_rows(TestCtx *t, const cJSON *root, const char *name, int rows, const char *but) {
    const cJSON *table = cJSON_GetObjectItem(root, name), *row, *cell;
    CHECK_MSG(t, cJSON_GetArraySize(table) == rows, "%s: %d rows, expected %d", name,
              cJSON_GetArraySize(table), rows);
    cJSON_ArrayForEach(row, table) {
        cJSON_ArrayForEach(cell, row) {
            if (cJSON_IsString(cell) || strcmp(cell->string, but) == 0) continue;
            // Null: a difference of times that came out negative.
            bool null = cJSON_IsNull(cell) && strstr(cell->string, "backward_seconds");
            null = null || (cJSON_IsNull(cell) && strcmp(cell->string, "optimizer_seconds") == 0);
            CHECK_MSG(t, null || (cJSON_IsNumber(cell) && cell->valuedouble > 0), "%s.%s", name,
                      cell->string);
        }
    }
}

static double figure(const cJSON *root, const char *table, int row, const char *key) {
    const cJSON *r = cJSON_GetArrayItem(cJSON_GetObjectItem(root, table), row);
    return cJSON_GetNumberValue(cJSON_GetObjectItem(r, key));
}

static bool close_to(double a, double b) {
    return fabs(a - b) <= 1e-6 * fabs(b);
}

static void run_of_all_sections_gives_one_object_with_every_figure(TestCtx *t) {
    Bench b;
    Ops ops;
    Error err = {0};
    Buf out = {0};
    open_small(t, &b, &ops);
    CHECK_MSG(t, bench_run(&b, &err), "%s", err.text);
    bench_json(&out, &b);
    cJSON *root = cJSON_Parse(out.text);
    CHECK_MSG(t, root != NULL, "found: %s", out.text);
    check_rows(t, root, "peaks", 5, "");
    check_rows(t, root, "step", 4, "");
    check_rows(t, root, "muon", 1, "");  // only one of the two uses it
    check_rows(t, root, "prefill", 4, "");
    check_rows(t, root, "decode", 2 * (2 + 3), "depth");  // 40 is beyond the first one's context
    // For each: what x meets in attention, wo, c_fc, c_proj; the head is as large as c_fc. The two
    // have different numbers of rows.
    check_rows(t, root, "gemm", 2 * (4 + 4), "");
    CHECK(t, figure(root, "step", 1, "tokens") == 24 && figure(root, "step", 1, "batch") == 2);
    // fp32 against the fp32 peak, bf16 against the other.
    for (int row = 0; row < 2; row++) {
        double peak = row ? 4e9 : 1e9, speed = figure(root, "step", row, "flops_per_s");
        CHECK(t, close_to(figure(root, "step", row, "share_of_peak"), speed / peak));
        CHECK(t, close_to(figure(root, "step", row, "tokens_per_s"),
                          48 / figure(root, "step", row, "seconds")));
        CHECK(t, close_to(speed, figure(root, "step", row, "tokens_per_s") *
                                     figure(root, "step", row, "flops_per_token")));
    }
    CHECK(t, close_to(figure(root, "decode", 0, "share_of_read"),
                      figure(root, "decode", 0, "bytes_per_s") / 2e9));
    // Nothing drifts when the peaks are constants.
    CHECK(t, cJSON_GetObjectItem(cJSON_GetObjectItem(root, "drift"), "fp32")->valuedouble == 0);
    cJSON_Delete(root);
    buf_free(&out);
    bench_print(&out, &b);
    CHECK(t, strstr(out.text, "small-1") && strstr(out.text, "with its instruction for bf16"));
    buf_free(&out);
    bench_free(&b);
}

static void decode_reads_weights_once_and_the_cache_up_to_its_depth(TestCtx *t) {
    Bench b;
    Ops ops;
    Error err = {0};
    open_small(t, &b, &ops);
    b.sections = 1u << BENCH_DECODE;
    b.n_compute = 1;
    CHECK_MSG(t, bench_run(&b, &err), "%s", err.text);
    const BenchTable *table = &b.table[BENCH_DECODE];
    CHECK(t, table->n_rows == 5 && b.table[BENCH_PREFILL].n_rows == 0);
    // Row 2 on: 2 * 32 values in one layer, fp32; 8 tokens are decoded, 4.5 held on average.
    for (int i = 0; i < 3; i++)
        CHECK(t, bench_get(table, 2 + i, DECODE_CACHE_BYTES) == (b.depth[i] + 4.5) * 64 * 4);
    // Prepared copies of qkv, wo, c_fc, c_proj and the tied head, and the vectors: 2 gains and 2
    // biases of each of three norms' 32 channels, biases of the matrices.
    double packed = 0;
    static const int shape[][2] = {{96, 32}, {32, 32}, {128, 32}, {32, 128}, {128, 32}};
    for (int i = 0; i < 5; i++)
        packed += (double)ops.weight_bytes(shape[i][0], shape[i][1], TYPE_F32);
    double vectors = (3 * 2 * 32 + 96 + 32 + 128 + 32) * 4.0;
    CHECK_MSG(t, bench_get(table, 2, DECODE_WEIGHT_BYTES) == packed + vectors,
              "%.0f, expected %.0f", bench_get(table, 2, DECODE_WEIGHT_BYTES), packed + vectors);
    bench_free(&b);
}

static void depths_that_were_asked_for_must_fit(TestCtx *t) {
    Bench b;
    Ops ops;
    Error err = {0};
    open_small(t, &b, &ops);
    b.sections = 1u << BENCH_DECODE;
    b.depths_given = true;
    CHECK(t, !bench_run(&b, &err));
    CHECK_ERROR(t, err, "40 tokens of --depths");
    CHECK(t, b.table[BENCH_DECODE].n_rows == 0);
    bench_free(&b);
}

static void command_refuses_what_it_does_not_know(TestCtx *t) {
    char *bad[][2] = {{"--only", "speed"}, {"--compute", "int8"}, {"--depths", "a"}};
    Program p = {NULL, 0};
    for (int i = 0; i < 3; i++)
        CHECK(t, bench_main(&p, 2, bad[i], false) == 2);
    char *missing[] = {"no-such-config.json"};
    CHECK(t, bench_main(&p, 1, missing, false) == 1);
}

TEST_MAIN({"median_is_the_middle_or_the_mean_of_two", median_is_the_middle_or_the_mean_of_two},
          {"samples_beyond_the_room_are_dropped", samples_beyond_the_room_are_dropped},
          {"share_needs_two_numbers_and_a_positive_whole",
           share_needs_two_numbers_and_a_positive_whole},
          {"one_repetition_is_always_due_and_others_while_time_lasts",
           one_repetition_is_always_due_and_others_while_time_lasts},
          {"table_lines_up_and_shows_what_is_missing", table_lines_up_and_shows_what_is_missing},
          {"table_without_rows_prints_nothing", table_without_rows_prints_nothing},
          {"table_grows_and_keeps_its_cells", table_grows_and_keeps_its_cells},
          {"json_holds_every_column_and_null_for_what_is_missing",
           json_holds_every_column_and_null_for_what_is_missing},
          {"sections_are_parsed_from_a_list", sections_are_parsed_from_a_list},
          {"counts_are_parsed_from_a_list", counts_are_parsed_from_a_list},
          {"compute_types_are_parsed_from_a_list", compute_types_are_parsed_from_a_list},
          {"resident_memory_has_a_high_water_mark", resident_memory_has_a_high_water_mark},
          {"run_of_all_sections_gives_one_object_with_every_figure",
           run_of_all_sections_gives_one_object_with_every_figure},
          {"decode_reads_weights_once_and_the_cache_up_to_its_depth",
           decode_reads_weights_once_and_the_cache_up_to_its_depth},
          {"depths_that_were_asked_for_must_fit", depths_that_were_asked_for_must_fit},
          {"command_refuses_what_it_does_not_know", command_refuses_what_it_does_not_know})
