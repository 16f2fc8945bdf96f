// small_tokenizer.c - see small_tokenizer.h.
#include "test/small_tokenizer.h"

#include "gpt/tokenizer_parts.h"

#include <string.h>

const Small small = {
    .top = "",
    .pre = "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"use_regex\": true}",
    .added = "[{\"id\": 262, \"content\": \"<|endoftext|>\", \"special\": true}]",
    // ids 256.. : he, ll, hell, o-space is U+0120: " w", "hello", " wo"
    .more = ", \"he\": 256, \"ll\": 257, \"hell\": 258, \"hello\": 259, \"\u0120w\": 260, "
            "\"\u0120wo\": 261",
    .model = "",
    .merges = "[\"h e\", \"l l\", \"he ll\", \"hell o\", \"\u0120 w\", \"\u0120w o\"]",
};

char *small_json(Small s) {
    Buf b = {0};
    buf_printf(&b,
               "{%s\"added_tokens\": %s, \"normalizer\": null, \"pre_tokenizer\": %s, \"model\": {",
               s.top, s.added, s.pre);
    buf_printf(&b, "\"type\": \"BPE\", \"vocab\": {");
    Tokenizer *bytes = tokenizer_new(SPLIT_GPT2, 256);
    tokenizer_put_bytes(bytes);
    for (int id = 0; id < 256; id++) {
        Buf text = {0};
        size_t n;
        const char *byte = tokenizer_bytes(bytes, id, &n);
        alphabet_write(byte, n, &text);
        bool escape = *text.text == '"' || *text.text == '\\';
        buf_printf(&b, "%s\"%s%s\": %d", id ? ", " : "", escape ? "\\" : "", text.text, id);
        buf_free(&text);
    }
    tokenizer_free(bytes);
    buf_printf(&b, "%s}%s, \"merges\": %s}}", s.more, s.model, s.merges);
    return b.text;
}

Tokenizer *small_load(Small s, Error *err) {
    char *json = small_json(s);
    Tokenizer *tok = tokenizer_from_json(json, strlen(json), "small", err);
    mem_free(json);
    return tok;
}

Tokenizer *small_tokenizer(void) {
    Error err;
    Tokenizer *tok = small_load(small, &err);
    if (!tok) die("%s", err.text);
    return tok;
}

// The ids as text, owned by the caller.
char *ids_text(const Tokenizer *tok, const char *text, size_t n, bool parse_special) {
    int *ids;
    size_t n_ids;
    tokenizer_encode(tok, text, n, parse_special, &ids, &n_ids);
    Buf b = {0};
    buf_add(&b, "", 0);
    for (size_t i = 0; i < n_ids; i++)
        buf_printf(&b, "%s%d", i ? " " : "", ids[i]);
    mem_free(ids);
    return b.text;
}

void check_ids(TestCtx *t, const Tokenizer *tok, const char *text, size_t n, bool special,
               const char *want) {
    char *got = ids_text(tok, text, n, special);
    CHECK_MSG(t, !strcmp(got, want), "'%.60s': %s, expected %s", text, got, want);
    mem_free(got);
}

bool round_trips(const Tokenizer *tok, const char *text, size_t n) {
    TokenIds ids = {0};
    Buf back = {0};
    tokenizer_encode_to(tok, text, n, false, &ids);
    for (size_t i = 0; i < ids.n; i++) {
        size_t len;
        const char *bytes = tokenizer_bytes(tok, ids.ids[i], &len);
        buf_add(&back, bytes, len);
    }
    bool same = back.n == n && (!n || !memcmp(back.text, text, n));
    token_ids_free(&ids);
    buf_free(&back);
    return same;
}
