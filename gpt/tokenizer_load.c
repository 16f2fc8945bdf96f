// tokenizer_load.c - finds out what a tokenizer spec names and reads tiktoken's rank files and
// GPT-2's pair of files; tokenizer.json goes to tokenizer_json.c.
//
// .tiktoken: lines "base64(token bytes) rank"; the rank is the id. Special tokens and the splitting
// are not in the file, so only the two files whose rest is known here are read.
// vocab.bpe: "#version: 0.2", then "left right" per merge in the byte alphabet, by rank.
// encoder.json: one object, token text to id.
#include "gpt/tokenizer_vocab.h"

#include <assert.h>
#include <string.h>

enum { MAX_FILE_BYTES = 1 << 28 };

// --- tiktoken

typedef struct RankFile {
    const char *name;
    int n_ranks;
    SplitKind split;
    struct {
        int id;
        const char *text;
    } special[5];
} RankFile;

static const RankFile rank_files[] = {
    {"r50k_base", 50256, SPLIT_GPT2, {{50256, "<|endoftext|>"}}},
    {"cl100k_base",
     100256,
     SPLIT_GPT4,
     {{100257, "<|endoftext|>"},
      {100258, "<|fim_prefix|>"},
      {100259, "<|fim_middle|>"},
      {100260, "<|fim_suffix|>"},
      {100276, "<|endofprompt|>"}}},
};
enum { RANK_FILES = sizeof rank_files / sizeof rank_files[0] };

static int base64_value(char c) {
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

static bool base64_read(const char *text, size_t n, Buf *out) {
    if (!n || n % 4) return false;
    size_t pad = text[n - 1] != '=' ? 0 : text[n - 2] != '=' ? 1 : 2;
    uint32_t bits = 0;
    int held = 0;
    for (size_t i = 0; i < n - pad; i++) {
        int v = base64_value(text[i]);
        if (v < 0) return false;
        bits = bits << 6 | (uint32_t)v;
        held += 6;
        if (held < 8) continue;
        held -= 8;
        char byte = (char)(bits >> held & 0xFF);
        buf_add(out, &byte, 1);
    }
    return (bits & ((1u << held) - 1)) == 0;
}

// One line into a token whose id must be the line's number among the tokens.
static bool rank_line(Tokenizer *tok, const char *line, size_t n, int rank, const char *where,
                      Error *err) {
    const char *space = memchr(line, ' ', n);
    size_t n_text = space ? (size_t)(space - line) : n;
    char number[16] = "";
    size_t n_number = n - min_size(n, n_text + 1);
    if (n_number < sizeof number) memcpy(number, line + n - n_number, n_number);
    int64_t id = -1;
    if (!parse_i64(number, &id) || id != rank) {
        return error_set(err, "%s: line %d does not end in the rank %d", where, rank + 1, rank);
    }
    Buf bytes = {0};
    bool ok = (base64_read(line, n_text, &bytes) && bytes.n) ||
              error_set(err, "%s: line %d is not base64", where, rank + 1);
    ok = ok && tokenizer_put(tok, rank, bytes.text, bytes.n, TOKEN_MODEL, where, err);
    buf_free(&bytes);
    return ok;
}

// Each token of two or more bytes came from one merge: the two parts that its bytes become with the
// merges found so far.
static bool merges_recover(Tokenizer *tok, int n_ranks, const char *where, Error *err) {
    MergeScratch scratch = {0};
    TokenIds parts = {0};
    tok->merges = mem_alloc((size_t)n_ranks, sizeof *tok->merges);
    tokenizer_pairs_alloc(tok, n_ranks);
    bool ok = true;
    for (int b = 0; ok && b < 256; b++) {
        if (tok->byte_id[b] < 0) ok = error_set(err, "%s: no token for the byte 0x%02X", where, b);
    }
    for (int id = 0; ok && id < n_ranks; id++) {
        if (tok->len[id] < 2) continue;
        parts.n = 0;
        tokenizer_merge_piece(tok, tok->text.text + tok->start[id], (size_t)tok->len[id], &scratch,
                              &parts);
        tok->merges[tok->n_merges] = (Merge){parts.ids[0], parts.n == 2 ? parts.ids[1] : 0, id};
        ok = (parts.n == 2 && tokenizer_pair_add(tok, tok->n_merges)) ||
             error_set(err, "%s: the token %d does not follow from two earlier ones", where, id);
        tok->n_merges++;
    }
    token_ids_free(&parts);
    merge_scratch_free(&scratch);
    return ok;
}

static const RankFile *rank_file_of(const char *text, size_t n) {
    int lines = 0;
    for (size_t i = 0; i < n; i++)
        lines += text[i] == '\n' && i > 0 && text[i - 1] != '\n';
    lines += n > 0 && text[n - 1] != '\n';
    for (size_t i = 0; i < RANK_FILES; i++) {
        if (lines == rank_files[i].n_ranks) return &rank_files[i];
    }
    return NULL;
}

static bool ranks_read(Tokenizer *tok, const RankFile *f, const char *text, size_t n,
                       const char *where, Error *err) {
    int rank = 0;
    for (size_t i = 0; i < n;) {
        const char *end = memchr(text + i, '\n', n - i);
        size_t len = end ? (size_t)(end - text) - i : n - i;
        if (len && !rank_line(tok, text + i, len, rank++, where, err)) return false;
        i += len + 1;
    }
    for (int i = 0; i < 5 && f->special[i].text; i++) {
        const char *s = f->special[i].text;
        if (!tokenizer_put(tok, f->special[i].id, s, strlen(s), TOKEN_ADDED | TOKEN_SPECIAL, where,
                           err)) {
            return false;
        }
    }
    return merges_recover(tok, f->n_ranks, where, err);
}

static Tokenizer *tiktoken_load(const char *text, size_t n, const char *where, Error *err) {
    const RankFile *f = rank_file_of(text, n);
    if (!f) {
        error_set(
            err,
            "%s: is neither r50k_base nor cl100k_base (50256 or 100256 lines), and splitting and "
            "special tokens of other tiktoken files are not in the file; use its tokenizer.json",
            where);
        return NULL;
    }
    int last = 0;
    for (int i = 0; i < 5 && f->special[i].text; i++)
        last = f->special[i].id;
    Tokenizer *tok = tokenizer_new(f->split, last + 1);
    if (!ranks_read(tok, f, text, n, where, err)) {
        tokenizer_free(tok);
        return NULL;
    }
    return tokenizer_finish(tok, tok->merges, tok->n_merges, where, err);
}

// --- GPT-2's two files

static bool merge_lines(const char *text, size_t n, VocabText *v, const char *where, Error *err) {
    size_t lines = 1;
    for (size_t i = 0; i < n; i++)
        lines += text[i] == '\n';
    v->merges = mem_alloc(lines, sizeof *v->merges);
    int line = 0;
    for (size_t i = 0; i < n;) {
        const char *end = memchr(text + i, '\n', n - i);
        size_t len = end ? (size_t)(end - text) - i : n - i, next = i + len + 1;
        if (len && text[i + len - 1] == '\r') len--;
        line++;
        bool version = line == 1 && len >= 8 && !memcmp(text, "#version", 8);
        if (len && !version && !merge_text_split(text + i, len, &v->merges[v->n_merges++])) {
            return error_set(err, "%s: line %d is not \"left right\"", where, line);
        }
        i = next;
    }
    return true;
}

static Tokenizer *pair_load(const char *bpe, const char *json_path, Error *err) {
    char *merges = NULL, *vocab = NULL;
    size_t n_merges, n_vocab;
    VocabText v = {.where = json_path, .split = SPLIT_GPT2};
    cJSON *json = NULL, *added = NULL;
    Tokenizer *tok = NULL;
    if (file_read(bpe, MAX_FILE_BYTES, &merges, &n_merges, err) &&
        file_read(json_path, MAX_FILE_BYTES, &vocab, &n_vocab, err) &&
        merge_lines(merges, n_merges, &v, bpe, err) &&
        (json = json_object_parse(vocab, n_vocab, json_path, err))) {
        const cJSON *end = cJSON_GetObjectItemCaseSensitive(json, "<|endoftext|>");
        added = cJSON_CreateArray();
        if (end) {
            cJSON *token = cJSON_CreateObject();
            cJSON_AddNumberToObject(token, "id", end->valuedouble);
            cJSON_AddStringToObject(token, "content", end->string);
            cJSON_AddTrueToObject(token, "special");
            cJSON_AddItemToArray(added, token);
        }
        v.vocab = json;
        v.added = added;
        tok = tokenizer_from_vocab(&v, err);
    }
    cJSON_Delete(json);
    cJSON_Delete(added);
    mem_free(v.merges);
    mem_free(merges);
    mem_free(vocab);
    return tok;
}

// --- What the spec names

static bool ends_with(const char *s, const char *end) {
    size_t n = strlen(s), m = strlen(end);
    return n >= m && !strcmp(s + n - m, end);
}

static Tokenizer *file_load(const char *path, Error *err) {
    char *text;
    size_t n;
    if (!file_read(path, MAX_FILE_BYTES, &text, &n, err)) return NULL;
    Tokenizer *tok = ends_with(path, ".tiktoken") ? tiktoken_load(text, n, path, err)
                                                  : tokenizer_from_json(text, n, path, err);
    mem_free(text);
    return tok;
}

// True when the folder has what the names say and a load was tried.
static bool folder_try(const char *dir, const char *a, const char *b, Tokenizer **tok, Error *err) {
    char *path_a = path_join(dir, a), *path_b = b ? path_join(dir, b) : NULL;
    bool there = file_exists(path_a) && (!b || file_exists(path_b));
    if (there) *tok = b ? pair_load(path_a, path_b, err) : file_load(path_a, err);
    mem_free(path_a);
    mem_free(path_b);
    return there;
}

Tokenizer *tokenizer_load(const char *spec, Error *err) {
    bool gpt2 = !strncmp(spec, "gpt2:", 5);
    const char *path = gpt2 ? spec + 5 : spec;
    if (!dir_exists(path)) return file_load(path, err);
    Tokenizer *tok = NULL;
    if (!gpt2 && folder_try(path, "tokenizer.json", NULL, &tok, err)) return tok;
    if (folder_try(path, "vocab.bpe", "encoder.json", &tok, err)) return tok;
    if (folder_try(path, "merges.txt", "vocab.json", &tok, err)) return tok;
    if (folder_try(path, "tokenizer.json", NULL, &tok, err)) return tok;
    error_set(
        err,
        "%s: the folder has neither tokenizer.json nor vocab.bpe + encoder.json nor merges.txt + "
        "vocab.json",
        path);
    return NULL;
}
