// fuzz_tokenizer.c - arbitrary bytes as a tokenizer.json (an input that starts with a brace), as
// damage to a valid one (an odd first byte) and as text (an even one). Aborts when text does not
// come back from its ids, when parts give other ids than the whole, or when a file that was read
// does not read again after saving.
#include "gpt/tokenizer.h"
#include "test/small_tokenizer.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void use(Tokenizer *tok) {
    if (!tok) return;
    static const char text[] = "hello  world\n<|endoftext|> it's 2\xFF";
    if (!round_trips(tok, text, sizeof text)) abort();
    tokenizer_free(tok);
}

static void fuzz_json(const char *data, size_t size) {
    Error err;
    use(tokenizer_from_json(data, size, "fuzz", &err));
}

// Each three bytes overwrite one byte of a valid file.
static void fuzz_damage(const char *data, size_t size) {
    Error err;
    char *json = small_json(small);
    size_t n = strlen(json);
    for (size_t i = 0; i + 3 <= size; i += 3) {
        size_t at = (size_t)(unsigned char)data[i] << 8 | (unsigned char)data[i + 1];
        json[at % n] = data[i + 2];
    }
    use(tokenizer_from_json(json, n, "fuzz", &err));
    mem_free(json);
}

static const Tokenizer *text_tokenizer(void) {
    static Tokenizer *tok;  // the same for every text
    Small s = small;
    s.added = "[{\"id\": 262, \"content\": \"<|endoftext|>\", \"special\": true}, {\"id\": 263, "
              "\"content\": \"  \", \"special\": false}]";
    Error err;
    if (!tok) tok = small_load(s, &err);
    return tok;
}

static void fuzz_text(const char *data, size_t size) {
    const Tokenizer *tok = text_tokenizer();
    size_t target = (unsigned char)data[0] + 1u;
    data++, size--;
    TokenIds whole = {0}, parts = {0};
    tokenizer_encode_to(tok, data, size, false, &whole);
    for (size_t at = 0; at < size;) {
        size_t seen = min_size(size - at, target + 8), end = 0;
        while (at + seen < size && !(end = tokenizer_cut(tok, data + at, seen, target))) {
            seen = min_size(size - at, 2 * seen);
        }
        if (at + seen == size) end = seen;
        tokenizer_encode_part(tok, data + at, seen, end, &parts);
        at += end;
    }
    if (parts.n != whole.n) abort();
    if (whole.n && memcmp(parts.ids, whole.ids, whole.n * sizeof(int))) abort();
    if (!round_trips(tok, data, size)) abort();
    token_ids_free(&whole);
    token_ids_free(&parts);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 2) return 0;
    const char *rest = (const char *)data + 1;
    if (data[0] % 3 == 0)
        fuzz_json(rest, size - 1);
    else if (data[0] % 3 == 1)
        fuzz_damage(rest, size - 1);
    else
        fuzz_text(rest, size - 1);
    return 0;
}
