// bench.h - the speed of this machine and of the program on it. Every figure is the median of its
// repetitions, beside its share of a peak that the same process measured right before or after it:
// machines are shared, and a speed alone says nothing on one of them.
//
// Figures are collected in tables of cells, so that what people read and the JSON object come from
// the same rows. Units in cells and JSON are bytes, seconds, FLOP and their quotients.
#pragma once

#include "gpt/plan.h"
#include "gpt/run.h"

// --- Tables (bench_table.c; no clock)
typedef enum BenchKind { BENCH_TEXT, BENCH_NUMBER } BenchKind;

typedef struct BenchColumn {
    const char *key;   // in JSON
    const char *head;  // in the printed table, with its unit; NULL: only in JSON
    BenchKind kind;
    double unit;  // printed is number / unit; 0: 1
    int digits;   // printed behind the point
} BenchColumn;

typedef struct BenchCell {
    double number;  // NaN: not measured; "-" in tables, null in JSON
    char *text;     // owned; NULL: not set
} BenchCell;

typedef struct BenchTable {
    const char *name;
    const BenchColumn *column;
    int n_columns, n_rows, cap;
    BenchCell *cell;  // (n_rows, n_columns)
} BenchTable;

// An empty table of these columns, which must outlive it. Free with bench_table_free.
void bench_table_open(BenchTable *t, const char *name, const BenchColumn *column, int n_columns);
void bench_table_free(BenchTable *t);
// Appends a row without figures and returns its number.
int bench_row(BenchTable *t);
void bench_set(BenchTable *t, int row, int column, double number);
void bench_set_text(BenchTable *t, int row, int column, const char *text);
double bench_get(const BenchTable *t, int row, int column);
const char *bench_get_text(const BenchTable *t, int row, int column);
// Columns side by side, texts to the left and numbers to the right; nothing without rows.
void bench_table_print(Buf *out, const BenchTable *t);
// "name": [{...}, ...]
void bench_table_json(Buf *out, const BenchTable *t);
// A JSON string with its quotes.
void bench_json_text(Buf *out, const char *text);
// A JSON number, or null when it is not finite.
void bench_json_number(Buf *out, double x);

// --- Samples and time
enum { BENCH_SAMPLES = 100 };  // most repetitions

typedef struct BenchTimes {
    double sample[BENCH_SAMPLES];  // seconds
    int n;
    double processor;  // seconds of all threads during the samples
} BenchTimes;

void bench_add(BenchTimes *t, double seconds);
// The middle sample, or the mean of the middle two; NaN without samples.
double bench_median(const BenchTimes *t);
double bench_total(const BenchTimes *t);
// part / whole, NaN unless both are finite and whole is positive.
double bench_share(double part, double whole);
// Whether another repetition is due: always until there is one, never beyond `repeat`, and
// otherwise while one more of the usual length stays within `seconds`.
bool bench_more(const BenchTimes *t, int repeat, double seconds);

// --- Sections
typedef enum BenchSection {
    BENCH_PEAKS,
    BENCH_KERNELS,
    BENCH_GEMM,
    BENCH_STEP,
    BENCH_MUON,
    BENCH_PREFILL,
    BENCH_DECODE,
    N_BENCH_SECTIONS
} BenchSection;
extern const char *const bench_section_name[N_BENCH_SECTIONS];

// Bits 1 << section from "gemm,step"; false with a sentence for anything else.
bool bench_parse_sections(const char *text, unsigned *sections, Error *err);
// Counts from "0,1024": at most `max`, each from 0 to INT_MAX.
bool bench_parse_counts(const char *text, int *out, int max, int *n, Error *err);
// TYPE_F32 and TYPE_BF16 from "fp32,bf16".
bool bench_parse_compute(const char *text, ElemType out[2], int *n, Error *err);

enum { BENCH_CONFIGS = 32, BENCH_DEPTHS = 16, BENCH_PEAK_RUNS = 8 };

typedef struct BenchConfig {
    char name[64];  // the file's name without its folder and ".json"
    Config c;       // finished
} BenchConfig;

// What is measured and what came out of it.
typedef struct Bench {
    BenchConfig *config;
    int n_configs;
    ElemType compute[2];
    const Ops *ops[2];  // of each compute type
    int n_compute;
    unsigned sections;
    int batch, tokens;  // of a training step; tokens 0: 1024, or the context when it is shorter
    int prompt;         // tokens of a prefill, 0: 512 or the context
    int depth[BENCH_DEPTHS], n_depths;
    bool depths_given;  // depths beyond the context are refused, else left out
    int decode_tokens;  // in one repetition
    int muon_configs;   // most configs whose optimizer is measured by itself: it takes long
    int repeat;
    double seconds;   // for all sections together, as far as one repetition of each fits
    bool quiet;       // no progress on stderr
    double item_end;  // the clock by which the section should be done
    int items;        // measurements that the section still has before it
    Peaks peaks[BENCH_PEAK_RUNS];  // before the first section and after each
    int n_peaks;
    BenchTable table[N_BENCH_SECTIONS];
} Bench;

// Opens the tables; the settings are the caller's to fill, and bench_free's to free.
void bench_open(Bench *b);
// Measures everything that b asks for. False with a sentence when a config can't be measured.
bool bench_run(Bench *b, Error *err);
void bench_free(Bench *b);
void bench_print(Buf *out, const Bench *b);
// One JSON object with every figure; ends with a newline.
void bench_json(Buf *out, const Bench *b);

// --- Parts
// bench_kernels.c: every op of the table at the configs' sizes.
bool bench_kernels(Bench *b, Error *err);
// bench_gemm.c: products of the configs' shapes, each shape once.
bool bench_gemm(Bench *b, Error *err);
// bench_step.c: a training step of each config, AdamW on all tensors.
bool bench_step(Bench *b, Error *err);
// bench_muon.c: the optimizer alone, as configured and with AdamW on all tensors.
bool bench_muon(Bench *b, Error *err);
// bench_infer.c: prefill and decode.
bool bench_infer(Bench *b, Error *err);

// The tables of the sections.
enum { PEAK_WHEN, PEAK_F32, PEAK_BF16, PEAK_READ };
enum {
    KERNEL_CONFIG,
    KERNEL_COMPUTE,
    KERNEL_OP,
    KERNEL_SECONDS,
    KERNEL_BANDWIDTH,
    KERNEL_BANDWIDTH_SHARE,
    KERNEL_SPEED,
    KERNEL_SPEED_SHARE,
    KERNEL_BYTES,
    KERNEL_FLOPS,
    KERNEL_REPETITIONS
};
enum {
    GEMM_CONFIG,
    GEMM_TENSOR,
    GEMM_COMPUTE,
    GEMM_ROWS,
    GEMM_OC,
    GEMM_IC,
    GEMM_SPEED,                    // forward, dX, dW
    GEMM_SHARE = GEMM_SPEED + 3,   // the same three
    GEMM_SECONDS = GEMM_SHARE + 3  // the same three
};
enum {
    STEP_CONFIG,
    STEP_COMPUTE,
    STEP_BATCH,
    STEP_TOKENS,
    STEP_SECONDS,
    STEP_TOKEN_SPEED,
    STEP_SPEED,
    STEP_SHARE,
    STEP_CPU,   // of the processors
    STEP_PASS,  // forward and backward
    STEP_FORWARD,
    STEP_BACKWARD,
    STEP_OPTIMIZER,
    STEP_PREPARE,
    STEP_PEAK_BYTES,
    STEP_PLAN_BYTES,
    STEP_OVER_PLAN,
    STEP_FLOPS,
    STEP_REPETITIONS,
    STEP_LOSS
};
enum {
    MUON_CONFIG,
    MUON_SECONDS,
    MUON_ADAMW,
    MUON_SPEED,
    MUON_SHARE,
    MUON_OF_STEP,
    MUON_STEP_TOKENS,
    MUON_OF_FULL_STEP,
    MUON_FLOPS,
    MUON_REPETITIONS
};
enum {
    PREFILL_CONFIG,
    PREFILL_COMPUTE,
    PREFILL_TOKENS,
    PREFILL_SECONDS,
    PREFILL_TOKEN_SPEED,
    PREFILL_SPEED,
    PREFILL_SHARE,
    PREFILL_CPU,
    PREFILL_REPETITIONS
};
enum {
    DECODE_CONFIG,
    DECODE_COMPUTE,
    DECODE_KV,
    DECODE_DEPTH,
    DECODE_SECONDS,
    DECODE_TOKEN_SPEED,
    DECODE_BYTES,
    DECODE_SPEED,
    DECODE_SHARE,
    DECODE_CPU,
    DECODE_WEIGHT_BYTES,
    DECODE_CACHE_BYTES,
    DECODE_CACHE_ALLOCATED,
    DECODE_REPETITIONS
};

// Seconds that the next measurement may take, and one item less to do.
double bench_item_seconds(Bench *b);
// The config of a training step of b->batch sequences: length, tokens of the step, compute type.
Config bench_step_config(const Bench *b, const Config *c, ElemType compute);
// "bench: step 128m-mha bf16" on stderr, unless quiet.
void bench_progress(const Bench *b, const char *section, const char *config, const char *what);
// Noise in [-0.05, 0.05), n floats, caller frees with mem_free.
float *bench_noise(size_t n);
// Gives every tensor of the model noise and prepares it.
void bench_fill(Model *m);
// Random ids below V; caller frees.
int *bench_ids(size_t n, int V);

// --- The machine (bench_machine.c)
// The processor's name, "unknown" where the system doesn't tell.
void bench_cpu_name(char *out, size_t size);
int bench_threads(void);
// Sets the high-water mark of resident memory to what is resident now. False where the system
// can't.
bool bench_rss_reset(void);
// The high-water mark in bytes, since the reset where there was one.
size_t bench_rss_peak(void);
// Processor time of this process so far, seconds of all threads together.
double bench_processor_seconds(void);
// The share of the processors that the samples got; well below 1, neighbours had the rest.
double bench_processor_share(const BenchTimes *t);
