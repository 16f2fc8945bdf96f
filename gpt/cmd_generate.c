// cmd_generate.c - train_gpt generate. stdout carries the text and nothing else.
#define _POSIX_C_SOURCE 200809L
#include "gpt/generate.h"
#include "gpt/load.h"

#include <signal.h>
#include <string.h>
#include <unistd.h>

typedef struct GenerateCommand {
    const char *prompt, *prompt_file, *device;
    GenerateOptions o;
    int64_t seed;
    OptionList stop;
    bool json;
} GenerateCommand;

enum { PROMPT_MAX_BYTES = 64 << 20 };

// Set by SIGINT: generation ends between two tokens, and what was made so far is kept.
static volatile int cancelled;

static void cancel(int signal_number) {
    (void)signal_number;
    cancelled = 1;
}

static const GenerateCommand defaults = {
    .device = "auto",
    .seed = 1,
    .o = {.tokens = 200,
          .samples = 1,
          .sample = {.temperature = 0.8, .top_k = 50, .top_p = 0.95, .repetition_penalty = 1}},
};

enum { N_OPTIONS = 15 };

static void options(Option *out, GenerateCommand *g) {
    SampleOptions *s = &g->o.sample;
    const Option rows[N_OPTIONS] = {
        {"--prompt", "-p", OPT_TEXT, &g->prompt, 0, 0, "TEXT",
         "the prompt; without it, or as -, standard input"},
        {"--prompt-file", NULL, OPT_TEXT, &g->prompt_file, 0, 0, "FILE", "the prompt from a file"},
        {"--tokens", "-n", OPT_INT, &g->o.tokens, -1, 1e9, "N",
         "most new tokens; -1: until the end of text or of the context; 0: none"},
        {"--temperature", NULL, OPT_REAL, &s->temperature, 0, 1e9, "X",
         "0 takes the likeliest token"},
        {"--top-k", NULL, OPT_INT, &s->top_k, 0, 1e9, "K", "keep the K likeliest tokens; 0: all"},
        {"--top-p", NULL, OPT_REAL, &s->top_p, 0, 1, "P",
         "keep the smallest set with that probability"},
        {"--min-p", NULL, OPT_REAL, &s->min_p, 0, 1, "P",
         "keep tokens at least P times as likely as the best"},
        {"--repetition-penalty", NULL, OPT_REAL, &s->repetition_penalty, 0, 1e9, "R",
         "divide (negative: multiply) the logits of seen tokens by R; 1: off"},
        {"--repeat-window", NULL, OPT_INT, &s->repeat_window, 0, 1e9, "N",
         "latest tokens that the penalty looks at; 0: all"},
        {"--seed", NULL, OPT_INT, &g->seed, 0, 9e15, "N", "same seed, same text"},
        {"--samples", NULL, OPT_INT, &g->o.samples, 1, 4096, "N", "texts from one prefill"},
        {"--stop", NULL, OPT_LIST, &g->stop, 0, 0, "TEXT",
         "end before this text; may be given several times"},
        {"--ignore-eot", NULL, OPT_FLAG, &g->o.ignore_eot, 0, 0, NULL,
         "go on behind the end-of-text token"},
        {"--device", NULL, OPT_TEXT, &g->device, 0, 0, "NAME", "auto, cpu or cuda"},
        {"--json", NULL, OPT_FLAG, &g->json, 0, 0, NULL, "statistics as one JSON object on stderr"},
    };
    memcpy(out, rows, sizeof rows);
}

static bool read_stdin(Buf *b, Error *err) {
    char chunk[65536];
    size_t n;
    while ((n = fread(chunk, 1, sizeof chunk, stdin)) > 0) {
        buf_add(b, chunk, n);
        if (b->n > PROMPT_MAX_BYTES)
            return error_set(err, "the prompt is larger than %d bytes", PROMPT_MAX_BYTES);
    }
    return !ferror(stdin) || error_set(err, "reading the prompt from standard input failed");
}

static bool read_prompt(const GenerateCommand *g, Buf *b, Error *err) {
    buf_add(b, "", 0);
    if (g->prompt && g->prompt_file)
        return error_set(err, "give --prompt or --prompt-file, not both");
    if (g->prompt_file) {
        char *text;
        size_t n;
        if (!file_read(g->prompt_file, PROMPT_MAX_BYTES, &text, &n, err)) return false;
        buf_add(b, text, n);
        mem_free(text);
        return true;
    }
    if (g->prompt && strcmp(g->prompt, "-")) {
        buf_add(b, g->prompt, strlen(g->prompt));
        return true;
    }
    if (!g->prompt && isatty(STDIN_FILENO)) {
        return error_set(
            err, "no prompt; give --prompt TEXT, --prompt-file FILE, or text on standard input");
    }
    return read_stdin(b, err);
}

// One sample streams; several are kept apart and printed one after the other.
typedef struct Output {
    int samples;
    Buf *text;
} Output;

static void emit(void *ctx, int sample, const char *text, size_t n) {
    Output *o = ctx;
    if (o->samples > 1) {
        buf_add(&o->text[sample], text, n);
        return;
    }
    fwrite(text, 1, n, stdout);
    fflush(stdout);
}

static double rate(int64_t n, double seconds) {
    return seconds > 0 ? (double)n / seconds : 0;
}

static void print_stats(const GenerateStats *s, const GenerateCommand *g, int L) {
    double prompt = rate(s->prompt_tokens, s->prefill_seconds);
    double tokens = rate(s->decoded, s->decode_seconds);
    if (g->json) {
        fprintf(
            stderr,
            "{\"prompt_tokens\": %lld, \"prompt_tokens_per_s\": %.6g, \"generated_tokens\": %lld, "
            "\"tokens_per_s\": %.6g, \"cache_bytes\": %zu, \"cache_type\": \"%s\", "
            "\"cache_values_per_token_layer\": %lld, \"cache_tokens\": %d, \"layers\": %d, "
            "\"seed\": %lld, \"finish\": \"%s\"}\n",
            (long long)s->prompt_tokens, prompt, (long long)s->generated, tokens, s->cache_bytes,
            elem_name(s->cache_type), (long long)s->cache_values, s->cache_length, L,
            (long long)g->seed, s->finish);
        return;
    }
    fprintf(stderr,
            "prompt %lld tokens at %.4g tokens/s, generated %lld at %.4g tokens/s, cache %zu bytes "
            "(%lld values in %s x %d layers x %d tokens x %d), seed %lld, end: %s\n",
            (long long)s->prompt_tokens, prompt, (long long)s->generated, tokens, s->cache_bytes,
            (long long)s->cache_values, elem_name(s->cache_type), L, s->cache_length, s->cache_rows,
            (long long)g->seed, s->finish);
}

static bool run(GenerateCommand *g, Loaded *l, const Buf *prompt, Error *err) {
    if (!l->tok) {
        return error_set(
            err, "%s: no tokenizer.json beside the model, so text cannot be read or written",
            l->model_path);
    }
    Output out = {.samples = (int)g->o.samples,
                  .text = mem_alloc((size_t)g->o.samples, sizeof(Buf))};
    GenerateStats stats;
    struct sigaction on_cancel = {.sa_handler = cancel, .sa_flags = (int)SA_RESETHAND}, before;
    sigaction(SIGINT, &on_cancel, &before);
    bool ok = generate_text(l->m, l->tok, prompt->text, prompt->n, &g->o, emit, &out, &cancelled,
                            &stats, err);
    sigaction(SIGINT, &before, NULL);
    for (int i = 0; out.samples > 1 && i < out.samples; i++) {
        if (ok) printf("--- sample %d\n%s\n", i + 1, out.text[i].text ? out.text[i].text : "");
        buf_free(&out.text[i]);
    }
    if (ok && out.samples == 1) putchar('\n');
    mem_free(out.text);
    if (fflush(stdout) && ok) ok = error_set(err, "writing the text failed");
    if (ok) print_stats(&stats, g, l->m->L);
    return ok;
}

int generate_main(const Program *p, int argc, char **argv, bool help) {
    GenerateCommand g = defaults;
    Option table[N_OPTIONS];
    options(table, &g);
    CommandLine line = {
        .options = table,
        .n_options = N_OPTIONS,
        .expects = "generate expects a run directory, a checkpoint or a model.safetensors"};
    int status;
    if (!command_line(&line, argc, argv, help, &status)) return status;
    Error err = {0};
    for (int i = 0; i < g.stop.n; i++) {
        if (g.stop.text[i][0]) continue;
        error_set(&err, "--stop expects a text that is not empty");
        return command_failed(&err, 2);
    }
    g.o.stop = g.stop.text, g.o.n_stop = g.stop.n, g.o.seed = (uint64_t)g.seed;
    Loaded l = {0};
    Buf prompt = {0};
    bool ok = read_prompt(&g, &prompt, &err) &&
              loaded_open(&l, line.subject[0], line.setting, line.n_settings, p, g.device, &err) &&
              run(&g, &l, &prompt, &err);
    loaded_close(&l);
    buf_free(&prompt);
    return ok ? 0 : command_failed(&err, 1);
}
