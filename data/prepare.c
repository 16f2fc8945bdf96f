// prepare.c - a run from checks to the final rename, see prepare.h.
#define _POSIX_C_SOURCE 200809L
#include "data/prepare.h"

#include "data/prepare_parts.h"

#include <dirent.h>
#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

PrepareOptions prepare_defaults(void) {
    return (PrepareOptions){
        .shard_tokens = 100000000,
        .field = "text",
        .sample_bytes = 64 << 20,
    };
}

static bool check_options(const PrepareOptions *o, Error *err) {
    if (!(o->val_fraction >= 0 && o->val_fraction < 1)) {
        return error_set(err, "the validation fraction must be at least 0 and below 1, found %g",
                         o->val_fraction);
    }
    if (o->val_fraction > 0 && o->n_val_docs > 0) {
        return error_set(
            err, "validation is chosen by a fraction and by names at once; give one of the two");
    }
    if (o->shard_tokens < 1 || o->shard_tokens > SHARD_MAX_TOKENS) {
        return error_set(err, "a shard of %lld tokens was asked for, expected 1 to %lld",
                         (long long)o->shard_tokens, (long long)SHARD_MAX_TOKENS);
    }
    if (o->separator && (!*o->separator || strlen(o->separator) > 1000)) {
        return error_set(err, "the separator between documents must have 1 to 1000 bytes");
    }
    return o->sample_bytes > 0 || error_set(err, "the text to learn from must be 1 byte or more");
}

// "train:N" gives N, anything else 0.
static bool learn_size(const PrepareOptions *o, int64_t *n, Error *err) {
    *n = 0;
    if (strncmp(o->tokenizer, "train:", 6)) return true;
    if (parse_i64(o->tokenizer + 6, n) && *n >= 257 && *n <= TOKENIZER_MAX_IDS) return true;
    return error_set(err,
                     "the tokenizer 'train:%s' needs a number of ids from 257 (the bytes and "
                     "<|endoftext|>) to %d",
                     o->tokenizer + 6, TOKENIZER_MAX_IDS);
}

bool prepare_check(const PrepareOptions *o, int64_t *n_learn, SplitKind *split, Error *err) {
    *split = SPLIT_GPT2;
    if (!check_options(o, err) || !learn_size(o, n_learn, err)) return false;
    return !o->split || split_from_name(o->split, split) ||
           error_set(err,
                     "the splitting '%s' is not known, expected gpt2, gpt4, gpt4-digits2 or "
                     "gpt4-digits1",
                     o->split);
}

// --- The output folder

static bool is_shard_name(const char *name) {
    const char *digits = !strncmp(name, "train_", 6) ? name + 6
                         : !strncmp(name, "val_", 4) ? name + 4
                                                     : NULL;
    return digits && strspn(digits, "0123456789") >= 6 &&
           !strcmp(digits + strspn(digits, "0123456789"), ".bin");
}

static bool is_output(const char *name) {
    return is_shard_name(name) || !strcmp(name, "tokenizer.json") || !strcmp(name, "prepare.json");
}

// Calls for every entry whose name passes; false stops.
typedef bool EntryVisit(const char *dir, const char *name, void *ctx, Error *err);

static bool each_entry(const char *dir, EntryVisit *visit, void *ctx, Error *err) {
    DIR *d = opendir(dir);
    if (!d) return error_set(err, "%s: cannot open the folder (%s)", dir, strerror(errno));
    bool ok = true;
    for (struct dirent *e; ok && (e = readdir(d));) {
        if (strcmp(e->d_name, ".") && strcmp(e->d_name, "..")) ok = visit(dir, e->d_name, ctx, err);
    }
    closedir(d);
    return ok;
}

static bool refuse_output(const char *dir, const char *name, void *ctx, Error *err) {
    (void)ctx;
    return !is_output(name) ||
           error_set(err, "%s: holds %s already; choose another folder, or --force to replace it",
                     dir, name);
}

static bool remove_output(const char *dir, const char *name, void *ctx, Error *err) {
    (void)ctx;
    if (!is_output(name)) return true;
    char *path = path_join(dir, name);
    bool ok = remove(path) == 0 || error_set(err, "%s: cannot remove (%s)", path, strerror(errno));
    mem_free(path);
    return ok;
}

static bool remove_any(const char *dir, const char *name, void *ctx, Error *err) {
    (void)ctx, (void)err;
    char *path = path_join(dir, name);
    remove(path);
    mem_free(path);
    return true;
}

static const char info_name[] = "prepare.json";

static bool move_file(const char *dir, const char *name, const char *to_dir, Error *err) {
    char *from = path_join(dir, name), *to = path_join(to_dir, name);
    bool ok = rename(from, to) == 0 ||
              error_set(err, "%s: cannot move to %s (%s)", from, to, strerror(errno));
    mem_free(from);
    mem_free(to);
    return ok;
}

static bool move_output(const char *dir, const char *name, void *ctx, Error *err) {
    const Prepare *p = ctx;
    if (!is_output(name) || !strcmp(name, info_name)) return true;
    return move_file(dir, name, p->o->out, err);
}

// Everything is on the disk before the first old file goes. prepare.json is moved last: with it,
// the folder is complete.
static bool install(Prepare *p, Error *err) {
    Buf json = {0};
    prepare_info_write(&p->info, &json);
    char *info = path_join(p->tmp, info_name), *tok = path_join(p->tmp, "tokenizer.json");
    bool ok = tokenizer_save(p->tok, tok, err) && file_write_atomic(info, json.text, json.n, err) &&
              (!p->o->force || each_entry(p->o->out, remove_output, NULL, err)) &&
              each_entry(p->tmp, move_output, p, err) &&
              move_file(p->tmp, info_name, p->o->out, err);
    buf_free(&json);
    mem_free(info);
    mem_free(tok);
    return ok;
}

// --- One run

static bool get_tokenizer(Prepare *p, int64_t n_learn, SplitKind split, Error *err) {
    if (n_learn) return prepare_learn(p, split, (int)n_learn, err);
    const PrepareOptions *o = p->o;
    p->tok = tokenizer_load(o->tokenizer, err);
    if (!p->tok) return false;
    if (o->split && tokenizer_split(p->tok) != split) {
        return error_set(err, "%s: splits text as %s, but %s was asked for", o->tokenizer,
                         split_name(tokenizer_split(p->tok)), o->split);
    }
    return tokenizer_eot(p->tok) >= 0 ||
           error_set(err, "%s: has no <|endoftext|> or similar token to put between documents",
                     o->tokenizer);
}

static void describe_tokenizer(Prepare *p) {
    PrepareInfo *info = &p->info;
    info->tokenizer_hash = tokenizer_hash(p->tok);
    info->n_ids = tokenizer_n_ids(p->tok);
    info->eot = tokenizer_eot(p->tok);
    info->id_bytes = info->n_ids <= 65536 ? 2 : 4;
    info->binary_files = p->docs.n_binary;
    snprintf(info->split, sizeof info->split, "%s", split_name(tokenizer_split(p->tok)));
}

static bool check_result(const Prepare *p, Error *err) {
    const PrepareSplit *train = &p->info.train, *val = &p->info.val;
    if (!train->documents && !val->documents) return error_set(err, "the inputs hold no text");
    if (p->o->n_val_docs && !val->documents)
        return error_set(err, "the files for validation hold no text");
    if (!(p->o->val_fraction > 0) || (train->documents && val->documents)) return true;
    return error_set(err,
                     "of %lld documents, %lld fell to training and %lld to validation; choose "
                     "files for validation by "
                     "name (--val-docs), or another fraction or seed",
                     (long long)(train->documents + val->documents), (long long)train->documents,
                     (long long)val->documents);
}

static bool run_in_tmp(Prepare *p, int64_t n_learn, SplitKind split, Error *err) {
    const PrepareOptions *o = p->o;
    DocumentsOptions d = {
        .inputs = o->inputs,
        .n_inputs = o->n_inputs,
        .separator = o->separator,
        .val_docs = o->val_docs,
        .n_val_docs = o->n_val_docs,
        .val_fraction = o->val_fraction,
        .seed = o->seed,
        .skip = o->out,
        .copy_stdin_to = n_learn || o->val_fraction > 0 ? p->tmp : NULL,
    };
    if (!n_learn && !get_tokenizer(p, 0, split, err)) return false;
    if (!documents_list(&p->docs, &d, err)) return false;
    if (n_learn && !get_tokenizer(p, n_learn, split, err)) return false;
    describe_tokenizer(p);
    return prepare_encode(p, err) && check_result(p, err) && install(p, err);
}

bool prepare_run(const PrepareOptions *o, Error *err) {
    int64_t n_learn;
    SplitKind split;
    if (!prepare_check(o, &n_learn, &split, err)) return false;
    bool was_there = dir_exists(o->out);
    if (!dir_make(o->out, err)) return false;
    if (!o->force && !each_entry(o->out, refuse_output, NULL, err)) return false;
    Prepare p = {.o = o};
    p.train = (Output){.name = "train", .count = &p.info.train};
    p.val = (Output){.name = "val", .count = &p.info.val};
    Buf tmp = {0};
    buf_printf(&tmp, "%s/tmp-prepare-%ld", o->out, (long)getpid());
    p.tmp = tmp.text;
    bool ok = dir_make(p.tmp, err) && run_in_tmp(&p, n_learn, split, err);
    if (!ok && p.told > 0) fputc('\n', o->progress);  // the sentence starts a line
    Error ignored;
    documents_free(&p.docs);
    tokenizer_free(p.tok);
    each_entry(p.tmp, remove_any, NULL, &ignored);
    rmdir(p.tmp);
    if (!ok && !was_there) rmdir(o->out);
    buf_free(&tmp);
    if (ok && o->info) *o->info = p.info;
    return ok;
}
