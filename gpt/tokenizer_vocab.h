// tokenizer_vocab.h - a Tokenizer from a vocabulary and merges written as text in the byte
// alphabet, the part that tokenizer.json and GPT-2's pair of files share.
#pragma once

#include "gpt/tokenizer_parts.h"

#include <cjson/cJSON.h>

// A merge as its file spells it: two stretches of text that stay the file's.
typedef struct MergeText {
    const char *left, *right;
    size_t n_left, n_right;
} MergeText;

typedef struct VocabText {
    const char *where;   // names the file in sentences
    const cJSON *vocab;  // object: token text -> id
    const cJSON *added;  // array of added_tokens, or NULL
    MergeText *merges;   // (n_merges)
    int n_merges;
    SplitKind split;
    bool ignore_merges;
} VocabText;

// NULL with a sentence: ids that repeat or are out of range, added tokens with flags that change
// matching, a merge of or into an unknown token, no merges although tokens need them.
Tokenizer *tokenizer_from_vocab(const VocabText *v, Error *err);

// Splits "left right" at its one space; false when there is none, more than one, or an empty side.
bool merge_text_split(const char *text, size_t n, MergeText *out);

// Parses a whole text as one JSON object. cJSON stops a nesting deeper than 1000 by itself.
cJSON *json_object_parse(const char *text, size_t n, const char *where, Error *err);
// False with a sentence when a key of a (small) object stands there twice.
bool json_keys_unique(const cJSON *object, const char *what, const char *where, Error *err);
