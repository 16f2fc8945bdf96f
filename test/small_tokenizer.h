// small_tokenizer.h - a tokenizer of 263 ids for tests, made from a tokenizer.json whose parts a
// test can change: the 256 bytes, "he" "ll" "hell" "hello" " w" " wo" as 256..261, <|endoftext|>
// 262.
#pragma once

#include "gpt/tokenizer.h"
#include "test/test.h"

typedef struct Small {
    const char *top;    // members in front, "" or ending in a comma
    const char *pre;    // pre_tokenizer
    const char *added;  // added_tokens
    const char *more;   // vocabulary behind the 256 bytes, each ", \"x\": 256"
    const char *model;  // more members of the model, each starting with a comma
    const char *merges;
} Small;

extern const Small small;

// The text of the file, owned by the caller (mem_free).
char *small_json(Small s);
Tokenizer *small_load(Small s, Error *err);
// Of the parts as they are; owned by the caller.
Tokenizer *small_tokenizer(void);

// The ids of a text as "1 2 3", owned by the caller.
char *ids_text(const Tokenizer *tok, const char *text, size_t n, bool parse_special);
void check_ids(TestCtx *t, const Tokenizer *tok, const char *text, size_t n, bool special,
               const char *want);
// Whether the bytes of the ids are the text again.
bool round_trips(const Tokenizer *tok, const char *text, size_t n);
