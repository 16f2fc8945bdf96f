// cmd_bench.c - train_gpt bench. stdout carries the tables or the JSON object, stderr the progress.
#include "gpt/bench.h"

#include <string.h>

typedef struct BenchCommand {
    const char *only, *compute, *depths, *device, *json_file;
    int64_t batch, tokens, prompt, decode, repeat;
    double seconds;
    bool json;
} BenchCommand;

enum { N_OPTIONS = 12 };

static const char *const default_configs[] = {"configs/128m-mha.json", "configs/128m-gqa.json",
                                              "configs/128m-mqa.json", "configs/128m-mla.json",
                                              "configs/128m-lrkv.json"};
enum { N_DEFAULT_CONFIGS = sizeof default_configs / sizeof default_configs[0] };

static const BenchCommand defaults = {
    .only = "peaks,gemm,step,muon,prefill,decode",
    .compute = "fp32,bf16",
    .device = "auto",
    .batch = 1,
    .decode = 8,
    .repeat = 5,
    .seconds = 150,
};

static void options(Option *out, BenchCommand *o) {
    const Option rows[N_OPTIONS] = {
        {"--only", NULL, OPT_TEXT, &o->only, 0, 0, "LIST",
         "sections to measure; kernels, every op by itself, only when named"},
        {"--compute", NULL, OPT_TEXT, &o->compute, 0, 0, "LIST",
         "types in which products take their operands"},
        {"--batch", NULL, OPT_INT, &o->batch, 1, 1 << 20, "N", "sequences of a training step"},
        {"--tokens", NULL, OPT_INT, &o->tokens, 0, 1 << 24, "N",
         "their length; 0: 1024, or model.seq_len when that is less"},
        {"--prompt", NULL, OPT_INT, &o->prompt, 0, 1 << 24, "N",
         "tokens of a prefill; 0: 512, or model.seq_len when that is less"},
        {"--depths", NULL, OPT_TEXT, &o->depths, 0, 0, "LIST",
         "tokens in the cache before decoding; 0,1024,1900 as far as model.seq_len allows"},
        {"--decode", NULL, OPT_INT, &o->decode, 1, 1 << 24, "N", "tokens decoded in a repetition"},
        {"--repeat", "-r", OPT_INT, &o->repeat, 1, BENCH_SAMPLES, "N", "most repetitions"},
        {"--seconds", NULL, OPT_REAL, &o->seconds, 0, 1e6, "S",
         "for all measurements together, where one repetition of each takes no longer"},
        {"--device", NULL, OPT_TEXT, &o->device, 0, 0, "NAME", "auto, cpu or cuda"},
        {"--json", NULL, OPT_FLAG, &o->json, 0, 0, NULL, "every figure as one JSON object"},
        {"--json-file", NULL, OPT_TEXT, &o->json_file, 0, 0, "FILE",
         "write that object into a file beside the tables"},
    };
    memcpy(out, rows, sizeof rows);
}

static void config_name(char *out, size_t size, const char *path) {
    const char *slash = strrchr(path, '/');
    snprintf(out, size, "%s", slash ? slash + 1 : path);
    char *dot = strrchr(out, '.');
    if (dot && strcmp(dot, ".json") == 0) *dot = 0;
}

static bool add_config(Bench *b, const char *path, const CommandLine *line, Error *err) {
    if (b->n_configs == BENCH_CONFIGS)
        return error_set(err, "bench takes at most %d configs", BENCH_CONFIGS);
    BenchConfig *bc = &b->config[b->n_configs++];
    config_name(bc->name, sizeof bc->name, path);
    return config_open(&bc->c, path, line->setting, line->n_settings, err);
}

static bool load_configs(Bench *b, const CommandLine *line, Error *err) {
    b->config = mem_alloc(BENCH_CONFIGS, sizeof(BenchConfig));
    for (int i = 0; i < line->n_subjects; i++) {
        if (!add_config(b, line->subject[i], line, err)) return false;
    }
    if (b->n_configs == 0) b->muon_configs = 1;  // the variants differ little in it
    for (int i = 0; b->n_configs == i && i < N_DEFAULT_CONFIGS; i++) {
        if (!file_exists(default_configs[i]))
            return error_set(
                err, "%s: not found; start bench where configs/ lies, or give it config files",
                default_configs[i]);
        if (!add_config(b, default_configs[i], line, err)) return false;
    }
    program_threads(b->config[0].c.train.threads);
    return true;
}

static bool settings(Bench *b, const BenchCommand *o, Error *err) {
    b->batch = (int)o->batch, b->tokens = (int)o->tokens, b->prompt = (int)o->prompt;
    b->decode_tokens = (int)o->decode, b->repeat = (int)o->repeat, b->seconds = o->seconds;
    b->depths_given = o->depths != NULL;
    const char *depths = o->depths ? o->depths : "0,1024,1900";
    if (!bench_parse_counts(depths, b->depth, BENCH_DEPTHS, &b->n_depths, err))
        return error_prefix(err, "--depths");
    return bench_parse_sections(o->only, &b->sections, err) &&
           bench_parse_compute(o->compute, b->compute, &b->n_compute, err);
}

static bool open_devices(Bench *b, const Program *p, const char *device, Error *err) {
    for (int k = 0; k < b->n_compute; k++) {
        b->ops[k] = program_ops(p, device, b->compute[k], err);
        if (!b->ops[k]) return false;
    }
    return true;
}

static bool run(Bench *b, const BenchCommand *o, Error *err) {
    Buf out = {0}, json = {0};
    if (!bench_run(b, err)) return false;
    bench_json(&json, b);
    if (!o->json) bench_print(&out, b);
    fputs(o->json ? json.text : out.text, stdout);
    bool ok = !o->json_file || file_write_atomic(o->json_file, json.text, json.n, err);
    buf_free(&out);
    buf_free(&json);
    return ok && (!fflush(stdout) || error_set(err, "writing the figures failed"));
}

int bench_main(const Program *p, int argc, char **argv, bool help) {
    BenchCommand o = defaults;
    Option table[N_OPTIONS];
    options(table, &o);
    CommandLine line = {.options = table,
                        .n_options = N_OPTIONS,
                        .note = "Without a config file the five configs/128m-*.json are measured "
                                "(muon on the first). Settings are\noverridden as "
                                "section.field=value, in all configs.\n",
                        .many = true};
    int status;
    if (!command_line(&line, argc, argv, help, &status)) return status;
    Error err = {0};
    Bench b;
    bench_open(&b);
    if (!settings(&b, &o, &err)) {
        bench_free(&b);
        return command_failed(&err, 2);
    }
    bool ok =
        load_configs(&b, &line, &err) && open_devices(&b, p, o.device, &err) && run(&b, &o, &err);
    bench_free(&b);
    return ok ? 0 : command_failed(&err, 1);
}
