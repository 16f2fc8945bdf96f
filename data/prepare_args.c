// prepare_args.c - the command line of `prepare`: one table of flags, the help made from it, and
// the summary. Wrong usage is status 2, everything else that goes wrong 1.
#define _POSIX_C_SOURCE 200809L
#include "data/prepare_parts.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef enum FlagKind {
    FLAG_TEXT,
    FLAG_LIST,
    FLAG_COUNT,
    FLAG_FRACTION,
    FLAG_SEED,
    FLAG_SWITCH
} FlagKind;

typedef struct Args {
    PrepareOptions o;
    const char **inputs, **val_docs;  // (argc)
    int64_t threads, seed;
    bool json, help;
} Args;

enum { FLAGS = 13 };

typedef struct Flag {
    const char *name, *value, *help;
    FlagKind kind;
    void *target;
} Flag;

static void flag_table(Flag *flags, Args *a) {
    const Flag table[FLAGS] = {
        {"--tokenizer", "SPEC",
         "gpt2:PATH, a tokenizer.json, a .tiktoken file, or train:N to learn N ids", FLAG_TEXT,
         &a->o.tokenizer},
        {"--out", "DIR", "folder for the shards, tokenizer.json and prepare.json", FLAG_TEXT,
         &a->o.out},
        {"--split", "KIND",
         "how train:N splits text: gpt2 (default), gpt4, gpt4-digits2, gpt4-digits1", FLAG_TEXT,
         &a->o.split},
        {"--val-fraction", "F",
         "part of the documents (of the text, if there is one document) for validation",
         FLAG_FRACTION, &a->o.val_fraction},
        {"--val-docs", "GLOB", "files with such a name go to validation; may be repeated",
         FLAG_LIST, &a->o.val_docs},
        {"--field", "NAME", "the text's field in .jsonl lines (default text)", FLAG_TEXT,
         &a->o.field},
        {"--separator", "TEXT", "splits text files into documents, as <|endoftext|> does in some",
         FLAG_TEXT, &a->o.separator},
        {"--shard-tokens", "N", "tokens in a shard (default 100000000)", FLAG_COUNT,
         &a->o.shard_tokens},
        {"--sample-bytes", "N", "most text to learn train:N from (default 67108864)", FLAG_COUNT,
         &a->o.sample_bytes},
        {"--seed", "N", "for choosing validation documents and the sample (default 0)", FLAG_SEED,
         &a->seed},
        {"--threads", "N", "for encoding (default: one per processor)", FLAG_COUNT, &a->threads},
        {"--force", NULL, "replace what an earlier run has left in DIR", FLAG_SWITCH, &a->o.force},
        {"--json", NULL, "print the summary as JSON", FLAG_SWITCH, &a->json},
    };
    memcpy(flags, table, sizeof table);
}

static void print_help(const Flag *flags) {
    printf("usage: train_gpt prepare INPUT... --tokenizer SPEC --out DIR [options]\n\n"
           "Turns text into token shards. An INPUT is a text file, a .jsonl file (one document a "
           "line),\n"
           "a folder (all text files in it, by name) or - for standard input.\n\n");
    for (int i = 0; i < FLAGS; i++) {
        printf("  %-15s %-5s %s\n", flags[i].name, flags[i].value ? flags[i].value : "",
               flags[i].help);
    }
}

static bool set_flag(const Flag *flag, const char *value, Args *a, Error *err) {
    int64_t n = 0;
    double f = 0;
    switch (flag->kind) {
    case FLAG_TEXT:
        *(const char **)flag->target = value;
        return true;
    case FLAG_LIST:
        a->val_docs[a->o.n_val_docs++] = value;
        return true;
    case FLAG_SWITCH:
        *(bool *)flag->target = true;
        return true;
    case FLAG_FRACTION:
        if (!parse_f64(value, &f) || !(f > 0 && f < 1)) break;
        *(double *)flag->target = f;
        return true;
    case FLAG_COUNT:
    case FLAG_SEED:
        if (!parse_i64(value, &n) || n < (flag->kind == FLAG_COUNT)) break;
        *(int64_t *)flag->target = n;
        return true;
    }
    const char *expected = flag->kind == FLAG_FRACTION ? "a number between 0 and 1"
                           : flag->kind == FLAG_COUNT  ? "a whole number from 1 on"
                                                       : "a whole number from 0 on";
    return error_set(err, "%s expects %s, found '%s'", flag->name, expected, value);
}

static bool unknown_flag(const Flag *flags, const char *name, Error *err) {
    const char *names[FLAGS];
    for (int i = 0; i < FLAGS; i++)
        names[i] = flags[i].name;
    const char *near = str_nearest(name, names, FLAGS);
    return error_set(err, "prepare has no option '%s'%s%s%s", name, near ? "; did you mean " : "",
                     near ? near : "", near ? "?" : "; see prepare --help");
}

// One flag at argv[*i], with its value behind it or behind '='.
static bool read_flag(const Flag *flags, int argc, char **argv, int *i, Args *a, Error *err) {
    const char *arg = argv[*i], *equals = strchr(arg, '=');
    size_t n = equals ? (size_t)(equals - arg) : strlen(arg);
    for (int k = 0; k < FLAGS; k++) {
        if (strlen(flags[k].name) != n || memcmp(flags[k].name, arg, n)) continue;
        bool is_switch = flags[k].kind == FLAG_SWITCH;
        if (is_switch && equals) return error_set(err, "%s takes no value", flags[k].name);
        if (!is_switch && !equals && ++*i == argc)
            return error_set(err, "%s needs a value", flags[k].name);
        return set_flag(&flags[k], is_switch ? NULL : equals ? equals + 1 : argv[*i], a, err);
    }
    return unknown_flag(flags, arg, err);
}

static bool read_args(const Flag *flags, int argc, char **argv, Args *a, Error *err) {
    bool only_inputs = false;
    for (int i = 1; i < argc; i++) {
        const char *arg = argv[i];
        if (only_inputs || *arg != '-' || !strcmp(arg, "-"))
            a->inputs[a->o.n_inputs++] = arg;
        else if (!strcmp(arg, "--"))
            only_inputs = true;
        else if (!strcmp(arg, "--help") || !strcmp(arg, "-h"))
            return a->help = true;
        else if (!read_flag(flags, argc, argv, &i, a, err))
            return false;
    }
    if (!a->o.n_inputs)
        return error_set(err, "prepare needs a file, a folder or - to read; see prepare --help");
    if (!a->o.tokenizer) return error_set(err, "prepare needs --tokenizer; see prepare --help");
    if (!a->o.out) return error_set(err, "prepare needs --out; see prepare --help");
    a->o.inputs = a->inputs;
    a->o.val_docs = a->val_docs;
    a->o.seed = (uint64_t)a->seed;
    a->o.n_threads = (int)(a->threads < 1024 ? a->threads : 1024);
    int64_t n_learn;
    SplitKind split;
    return prepare_check(&a->o, &n_learn, &split, err);
}

// --- The summary

static void print_split(const char *name, const PrepareSplit *s) {
    if (!s->documents) return;
    printf("%-10s %lld documents, %lld tokens, %lld bytes (%.3f bytes per token), %d %s\n", name,
           (long long)s->documents, (long long)s->tokens, (long long)s->bytes,
           (double)s->bytes / (double)s->tokens, s->shards, s->shards == 1 ? "shard" : "shards");
}

static void print_summary(const PrepareInfo *info, const char *out) {
    print_split("train", &info->train);
    print_split("val", &info->val);
    printf("tokenizer  %d ids, splitting as %s, hash %016llx", info->n_ids, info->split,
           (unsigned long long)info->tokenizer_hash);
    if (info->learned_from) {
        printf(", learned from %.1f MB%s", (double)info->learned_from / 1e6,
               info->learned_from_sample ? " (a sample of the text)" : "");
    }
    printf("\n");
    if (info->empty_documents)
        printf("skipped    %lld empty documents\n", (long long)info->empty_documents);
    if (info->binary_files) printf("skipped    %d files that are not text\n", info->binary_files);
    printf("written to %s\n", out);
}

static int run(Args *a, const char *out) {
    Error err;
    PrepareInfo info;
    a->o.info = &info;
    a->o.progress = isatty(STDERR_FILENO) ? stderr : NULL;
    if (!prepare_run(&a->o, &err)) {
        fprintf(stderr, "train_gpt: %s\n", err.text);
        return 1;
    }
    if (a->json) {
        Buf json = {0};
        prepare_info_write(&info, &json);
        fputs(json.text, stdout);
        buf_free(&json);
    } else {
        print_summary(&info, out);
    }
    return fflush(stdout) == 0 ? 0 : 1;
}

int prepare_main(int argc, char **argv) {
    Args a = {.o = prepare_defaults()};
    Flag flags[FLAGS];
    Error err;
    int status;
    a.inputs = mem_alloc((size_t)argc, sizeof *a.inputs);
    a.val_docs = mem_alloc((size_t)argc, sizeof *a.val_docs);
    flag_table(flags, &a);
    if (!read_args(flags, argc, argv, &a, &err)) {
        fprintf(stderr, "train_gpt: %s\n", err.text);
        status = 2;
    } else if (a.help) {
        print_help(flags);
        status = 0;
    } else {
        status = run(&a, a.o.out);
    }
    mem_free(a.inputs);
    mem_free(a.val_docs);
    return status;
}
