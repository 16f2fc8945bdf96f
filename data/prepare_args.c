// prepare_args.c - the command line of `prepare`: its table of options, and the summary. Wrong
// usage is status 2, everything else that goes wrong 1.
#define _POSIX_C_SOURCE 200809L
#include "data/prepare_parts.h"
#include "gpt/cli.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct Args {
    PrepareOptions o;
    OptionList val_docs;
    int64_t threads, seed;
    bool json;
} Args;

enum { N_OPTIONS = 13 };

static void options(Option *out, Args *a) {
    PrepareOptions *o = &a->o;
    const Option rows[N_OPTIONS] = {
        {"--tokenizer", NULL, OPT_TEXT, &o->tokenizer, 0, 0, "SPEC",
         "gpt2:PATH, a tokenizer.json, a .tiktoken file, or train:N to learn N ids"},
        {"--out", NULL, OPT_TEXT, &o->out, 0, 0, "DIR",
         "folder for the shards, tokenizer.json and prepare.json"},
        {"--split", NULL, OPT_TEXT, &o->split, 0, 0, "KIND",
         "how train:N splits text: gpt2 (default), gpt4, gpt4-digits2, gpt4-digits1"},
        {"--val-fraction", NULL, OPT_REAL, &o->val_fraction, 0, 1, "F",
         "part of the documents (of the text, if there is one document) for validation"},
        {"--val-docs", NULL, OPT_LIST, &a->val_docs, 0, 0, "GLOB",
         "files with such a name go to validation; may be given several times"},
        {"--field", NULL, OPT_TEXT, &o->field, 0, 0, "NAME", "the text's field in .jsonl lines"},
        {"--separator", NULL, OPT_TEXT, &o->separator, 0, 0, "TEXT",
         "splits text files into documents, as <|endoftext|> does in some"},
        {"--shard-tokens", NULL, OPT_INT, &o->shard_tokens, 1, 9e15, "N", "tokens in a shard"},
        {"--sample-bytes", NULL, OPT_INT, &o->sample_bytes, 1, 9e15, "N",
         "most text to learn train:N from"},
        {"--seed", NULL, OPT_INT, &a->seed, 0, 9e15, "N",
         "for choosing validation documents and the sample"},
        {"--threads", NULL, OPT_INT, &a->threads, 0, 1024, "N",
         "for encoding; 0: one per processor"},
        {"--force", NULL, OPT_FLAG, &o->force, 0, 0, NULL,
         "replace what an earlier run has left in DIR"},
        {"--json", NULL, OPT_FLAG, &a->json, 0, 0, NULL, "print the summary as JSON"},
    };
    memcpy(out, rows, sizeof rows);
}

static void print_help(const Option *table) {
    printf("An input is a text file, a .jsonl file (one document a line), a folder (all text files "
           "in it,\nby name) or - for standard input.\n\n");
    cli_help(stdout, table, N_OPTIONS);
}

static bool read_args(const Option *table, int argc, char **argv, Args *a, const char **inputs,
                      Error *err) {
    PrepareOptions *o = &a->o;
    if (!cli_parse(argc, argv, table, N_OPTIONS, inputs, argc, &o->n_inputs, err)) return false;
    if (!o->n_inputs)
        return error_set(err, "prepare needs a file, a folder or - to read; see prepare --help");
    if (!o->tokenizer) return error_set(err, "prepare needs --tokenizer; see prepare --help");
    if (!o->out) return error_set(err, "prepare needs --out; see prepare --help");
    o->inputs = inputs;
    o->val_docs = a->val_docs.text, o->n_val_docs = a->val_docs.n;
    o->seed = (uint64_t)a->seed;
    o->n_threads = (int)a->threads;
    int64_t n_learn;
    SplitKind split;
    return prepare_check(o, &n_learn, &split, err);
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

int prepare_main(int argc, char **argv, bool help) {
    Args a = {.o = prepare_defaults()};
    Option table[N_OPTIONS];
    options(table, &a);
    if (help) {
        print_help(table);
        return 0;
    }
    Error err;
    int status = 2;
    const char **inputs = mem_alloc((size_t)argc + 1, sizeof *inputs);
    if (read_args(table, argc, argv, &a, inputs, &err))
        status = run(&a, a.o.out);
    else
        fprintf(stderr, "train_gpt: %s\n", err.text);
    mem_free(inputs);
    return status;
}
