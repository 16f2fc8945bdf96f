// bench_print.c - the columns of every table, and the tables for people and as one JSON object.
#include "gpt/bench.h"

#include <math.h>
#include <string.h>

#define TEXT(key_, head_)                                                                          \
    { .key = (key_), .head = (head_), .kind = BENCH_TEXT }
#define NUMBER(key_, head_, unit_, dig)                                                            \
    { (key_), (head_), BENCH_NUMBER, (unit_), (dig) }

static const BenchColumn peak_columns[] = {
    [PEAK_WHEN] = TEXT("when", "measured"),
    [PEAK_F32] = NUMBER("fp32_flops", "fp32 GFLOP/s", 1e9, 1),
    [PEAK_BF16] = NUMBER("bf16_flops", "bf16 GFLOP/s", 1e9, 1),
    [PEAK_READ] = NUMBER("read_bytes", "read GB/s", 1e9, 1),
};

static const BenchColumn kernel_columns[] = {
    [KERNEL_CONFIG] = TEXT("config", "config"),
    [KERNEL_COMPUTE] = TEXT("compute", "type"),
    [KERNEL_OP] = TEXT("op", "op"),
    [KERNEL_SECONDS] = NUMBER("seconds", "us", 1e-6, 1),
    [KERNEL_BANDWIDTH] = NUMBER("bytes_per_s", "GB/s", 1e9, 1),
    [KERNEL_BANDWIDTH_SHARE] = NUMBER("share_of_read", "% of read", 0.01, 1),
    [KERNEL_SPEED] = NUMBER("flops_per_s", "TFLOP/s", 1e12, 3),
    [KERNEL_SPEED_SHARE] = NUMBER("share_of_peak", "% of peak", 0.01, 1),
    [KERNEL_BYTES] = NUMBER("bytes", "MB", 1e6, 2),
    [KERNEL_FLOPS] = NUMBER("flops", "GFLOP", 1e9, 3),
    [KERNEL_REPETITIONS] = NUMBER("repetitions", "runs", 1, 0),
};

static const BenchColumn gemm_columns[] = {
    [GEMM_CONFIG] = TEXT("config", "config"),
    [GEMM_TENSOR] = TEXT("tensor", "tensor"),
    [GEMM_COMPUTE] = TEXT("compute", "type"),
    [GEMM_ROWS] = NUMBER("rows", "rows", 1, 0),
    [GEMM_OC] = NUMBER("out", "out", 1, 0),
    [GEMM_IC] = NUMBER("in", "in", 1, 0),
    [GEMM_SPEED] = NUMBER("forward_flops_per_s", "fwd GFLOP/s", 1e9, 1),
    [GEMM_SPEED + 1] = NUMBER("dx_flops_per_s", NULL, 1e9, 1),
    [GEMM_SPEED + 2] = NUMBER("dw_flops_per_s", NULL, 1e9, 1),
    [GEMM_SHARE] = NUMBER("forward_share", "fwd %", 0.01, 1),
    [GEMM_SHARE + 1] = NUMBER("dx_share", "dX %", 0.01, 1),
    [GEMM_SHARE + 2] = NUMBER("dw_share", "dW %", 0.01, 1),
    [GEMM_SECONDS] = NUMBER("forward_seconds", NULL, 1, 6),
    [GEMM_SECONDS + 1] = NUMBER("dx_seconds", NULL, 1, 6),
    [GEMM_SECONDS + 2] = NUMBER("dw_seconds", NULL, 1, 6),
};

static const BenchColumn step_columns[] = {
    [STEP_CONFIG] = TEXT("config", "config"),
    [STEP_COMPUTE] = TEXT("compute", "type"),
    [STEP_BATCH] = NUMBER("batch", NULL, 1, 0),
    [STEP_TOKENS] = NUMBER("tokens", NULL, 1, 0),
    [STEP_SECONDS] = NUMBER("seconds", "step s", 1, 3),
    [STEP_TOKEN_SPEED] = NUMBER("tokens_per_s", "tokens/s", 1, 1),
    [STEP_SPEED] = NUMBER("flops_per_s", "GFLOP/s", 1e9, 1),
    [STEP_SHARE] = NUMBER("share_of_peak", "% of peak", 0.01, 1),
    [STEP_CPU] = NUMBER("processor_share", "cpu %", 0.01, 0),
    [STEP_PASS] = NUMBER("pass_seconds", NULL, 1, 3),
    [STEP_FORWARD] = NUMBER("forward_seconds", "fwd s", 1, 3),
    [STEP_BACKWARD] = NUMBER("backward_seconds", "bwd s", 1, 3),
    [STEP_OPTIMIZER] = NUMBER("optimizer_seconds", "adamw s", 1, 3),
    [STEP_PREPARE] = NUMBER("prepare_seconds", "pack s", 1, 3),
    [STEP_PEAK_BYTES] = NUMBER("peak_bytes", "peak MB", 1e6, 0),
    [STEP_PLAN_BYTES] = NUMBER("plan_bytes", "plan MB", 1e6, 0),
    [STEP_OVER_PLAN] = NUMBER("peak_over_plan", "% of plan", 0.01, 1),
    [STEP_FLOPS] = NUMBER("flops_per_token", "MFLOP/token", 1e6, 1),
    [STEP_REPETITIONS] = NUMBER("repetitions", "runs", 1, 0),
    [STEP_LOSS] = NUMBER("loss", NULL, 1, 4),
};

static const BenchColumn muon_columns[] = {
    [MUON_CONFIG] = TEXT("config", "config"),
    [MUON_SECONDS] = NUMBER("seconds", "as configured s", 1, 3),
    [MUON_ADAMW] = NUMBER("adamw_seconds", "all adamw s", 1, 3),
    [MUON_SPEED] = NUMBER("flops_per_s", "GFLOP/s", 1e9, 1),
    [MUON_SHARE] = NUMBER("share_of_peak", "% of peak", 0.01, 1),
    [MUON_OF_STEP] = NUMBER("share_of_step", "% of this step", 0.01, 1),
    [MUON_STEP_TOKENS] = NUMBER("configured_tokens", "config's tokens", 1, 0),
    [MUON_OF_FULL_STEP] = NUMBER("share_of_configured_step", "% of its step", 0.01, 2),
    [MUON_FLOPS] = NUMBER("flops", "GFLOP", 1e9, 0),
    [MUON_REPETITIONS] = NUMBER("repetitions", "runs", 1, 0),
};

static const BenchColumn prefill_columns[] = {
    [PREFILL_CONFIG] = TEXT("config", "config"),
    [PREFILL_COMPUTE] = TEXT("compute", "type"),
    [PREFILL_TOKENS] = NUMBER("tokens", "tokens", 1, 0),
    [PREFILL_SECONDS] = NUMBER("seconds", "s", 1, 4),
    [PREFILL_TOKEN_SPEED] = NUMBER("tokens_per_s", "tokens/s", 1, 1),
    [PREFILL_SPEED] = NUMBER("flops_per_s", "GFLOP/s", 1e9, 1),
    [PREFILL_SHARE] = NUMBER("share_of_peak", "% of peak", 0.01, 1),
    [PREFILL_CPU] = NUMBER("processor_share", "cpu %", 0.01, 0),
    [PREFILL_REPETITIONS] = NUMBER("repetitions", "runs", 1, 0),
};

static const BenchColumn decode_columns[] = {
    [DECODE_CONFIG] = TEXT("config", "config"),
    [DECODE_COMPUTE] = TEXT("compute", "type"),
    [DECODE_KV] = TEXT("cache_type", "cache"),
    [DECODE_DEPTH] = NUMBER("depth", "depth", 1, 0),
    [DECODE_SECONDS] = NUMBER("seconds", NULL, 1, 6),
    [DECODE_TOKEN_SPEED] = NUMBER("tokens_per_s", "tokens/s", 1, 1),
    [DECODE_BYTES] = NUMBER("bytes_per_token", "MB/token", 1e6, 1),
    [DECODE_SPEED] = NUMBER("bytes_per_s", "GB/s", 1e9, 2),
    [DECODE_SHARE] = NUMBER("share_of_read", "% of read", 0.01, 1),
    [DECODE_CPU] = NUMBER("processor_share", "cpu %", 0.01, 0),
    [DECODE_WEIGHT_BYTES] = NUMBER("weight_bytes", "weights MB", 1e6, 1),
    [DECODE_CACHE_BYTES] = NUMBER("cache_bytes", "cache MB", 1e6, 2),
    [DECODE_CACHE_ALLOCATED] = NUMBER("cache_bytes_allocated", NULL, 1, 0),
    [DECODE_REPETITIONS] = NUMBER("repetitions", "runs", 1, 0),
};

static const struct {
    const BenchColumn *column;
    int n;
    const char *title;
} table_list[N_BENCH_SECTIONS] = {
    [BENCH_PEAKS] = {peak_columns, sizeof peak_columns / sizeof(BenchColumn),
                     "peaks of this machine, all threads"},
    [BENCH_KERNELS] = {kernel_columns, sizeof kernel_columns / sizeof(BenchColumn),
                       "one call of each op; bytes: inputs read and outputs written once"},
    [BENCH_GEMM] = {gemm_columns, sizeof gemm_columns / sizeof(BenchColumn),
                    "products of a step: out x in weights; dX, dW: the gradients"},
    [BENCH_STEP] = {step_columns, sizeof step_columns / sizeof(BenchColumn),
                    "training step: forward, backward, norm, AdamW on all tensors, packing"},
    [BENCH_MUON] = {muon_columns, sizeof muon_columns / sizeof(BenchColumn),
                    "optimizer alone: as configured, and with AdamW on all tensors"},
    [BENCH_PREFILL] = {prefill_columns, sizeof prefill_columns / sizeof(BenchColumn),
                       "prefill of one sequence"},
    [BENCH_DECODE] = {decode_columns, sizeof decode_columns / sizeof(BenchColumn),
                      "decode of one sequence: weights and cache are read once a token"},
};

void bench_open(Bench *b) {
    *b = (Bench){
        .batch = 1, .decode_tokens = 8, .muon_configs = BENCH_CONFIGS, .repeat = 5, .seconds = 150};
    for (int i = 0; i < N_BENCH_SECTIONS; i++)
        bench_table_open(&b->table[i], bench_section_name[i], table_list[i].column,
                         table_list[i].n);
}

// Largest and smallest measurement of a peak: how much the machine moved under the run.
static double drift(const BenchTable *t, int column) {
    double low = INFINITY, high = 0;
    for (int i = 0; i < t->n_rows; i++) {
        low = fmin(low, bench_get(t, i, column));
        high = fmax(high, bench_get(t, i, column));
    }
    return bench_share(high - low, high);
}

// All products of a type together: FLOPs over seconds.
static double gemm_speed(const BenchTable *t, const char *compute) {
    double flops = 0, seconds = 0;
    for (int i = 0; i < t->n_rows; i++) {
        if (strcmp(bench_get_text(t, i, GEMM_COMPUTE), compute)) continue;
        for (int pass = 0; pass < 3; pass++) {
            double s = bench_get(t, i, GEMM_SECONDS + pass);
            flops += bench_get(t, i, GEMM_SPEED + pass) * s;
            seconds += s;
        }
    }
    return bench_share(flops, seconds);
}

static void print_machine(Buf *out, const Bench *b) {
    char cpu[128];
    bench_cpu_name(cpu, sizeof cpu);
    buf_printf(out, "machine     %s, %s %s, %d threads, %s\n", cpu, b->ops[0]->name, b->ops[0]->isa,
               bench_threads(),
               b->peaks[0].has_bf16 ? "with its instruction for bf16 products"
                                    : "bf16 products in fp32, so their peak is that of fp32");
}

void bench_print(Buf *out, const Bench *b) {
    const BenchTable *peaks = &b->table[BENCH_PEAKS];
    print_machine(out, b);
    for (int i = 0; i < N_BENCH_SECTIONS; i++) {
        if (!b->table[i].n_rows) continue;
        buf_printf(out, "\n%s\n", table_list[i].title);
        bench_table_print(out, &b->table[i]);
        if (i == BENCH_PEAKS && peaks->n_rows > 1)
            buf_printf(out, "drift within the run: fp32 %.1f %%, bf16 %.1f %%, read %.1f %%\n",
                       100 * drift(peaks, PEAK_F32), 100 * drift(peaks, PEAK_BF16),
                       100 * drift(peaks, PEAK_READ));
        for (int k = 0; i == BENCH_GEMM && k < b->n_compute; k++) {
            const char *compute = elem_name(b->compute[k]);
            buf_printf(out, "all of %s: %.1f GFLOP/s\n", compute,
                       gemm_speed(&b->table[i], compute) / 1e9);
        }
    }
}

static void json_machine(Buf *out, const Bench *b) {
    char cpu[128];
    bench_cpu_name(cpu, sizeof cpu);
    buf_printf(out, "{\"machine\": {\"cpu\": ");
    bench_json_text(out, cpu);
    buf_printf(out, ", \"device\": \"%s\", \"isa\": \"%s\", \"threads\": %d", b->ops[0]->name,
               b->ops[0]->isa, bench_threads());
    buf_printf(out, ", \"bf16_instruction\": %s},\n", b->peaks[0].has_bf16 ? "true" : "false");
    buf_printf(out, " \"settings\": {\"repeat\": %d, \"seconds\": ", b->repeat);
    bench_json_number(out, b->seconds);
    buf_printf(out, ", \"decode_tokens\": %d},\n", b->decode_tokens);
}

void bench_json(Buf *out, const Bench *b) {
    const BenchTable *peaks = &b->table[BENCH_PEAKS];
    json_machine(out, b);
    buf_printf(out, " \"drift\": {\"fp32\": ");
    bench_json_number(out, drift(peaks, PEAK_F32));
    buf_printf(out, ", \"bf16\": ");
    bench_json_number(out, drift(peaks, PEAK_BF16));
    buf_printf(out, ", \"read\": ");
    bench_json_number(out, drift(peaks, PEAK_READ));
    buf_printf(out, "}");
    for (int i = 0; i < N_BENCH_SECTIONS; i++) {
        buf_printf(out, ",\n ");
        bench_table_json(out, &b->table[i]);
    }
    buf_printf(out, "}\n");
}
