// tokenizer.h - byte-level byte-pair encoding in the form of Hugging Face's tokenizer.json.
// Every byte string encodes and decodes to itself, NUL and bytes that are not UTF-8 included.
// No normalisers, no prefix spaces, no byte fallback: a file that asks for them is refused.
// A Tokenizer never changes once made, so any number of threads may use one at a time.
#pragma once

#include "gpt/split.h"
#include "gpt/util.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct Tokenizer Tokenizer;

// The largest id plus one that a file may name.
enum { TOKENIZER_MAX_IDS = 1 << 22 };

// Loads what `spec` names, or returns NULL with a sentence:
//   FILE.json      tokenizer.json of a byte-level BPE
//   FILE.tiktoken  r50k_base (GPT-2) or cl100k_base (GPT-4), with their special tokens
//   FOLDER         with tokenizer.json, or vocab.bpe + encoder.json, or merges.txt + vocab.json
// An optional prefix "gpt2:" prefers the pair of GPT-2 files where a folder has both.
// The result is owned by the caller (tokenizer_free).
Tokenizer *tokenizer_load(const char *spec, Error *err);

// The same from the text of a tokenizer.json; `where` names it in sentences.
Tokenizer *tokenizer_from_json(const char *text, size_t n, const char *where, Error *err);
void tokenizer_free(Tokenizer *tok);

// Writes a tokenizer.json that Hugging Face's libraries and tokenizer_load read; false with a
// sentence when it cannot be written. Ids, text and hash come back the same.
bool tokenizer_save(const Tokenizer *tok, const char *path, Error *err);

// A growing list of ids. Start from {0}.
typedef struct TokenIds {
    int *ids;
    size_t n, cap;
} TokenIds;
void token_ids_add(TokenIds *list, int id);
void token_ids_free(TokenIds *list);

// Appends the ids of text[0..n). Special tokens such as <|endoftext|> are recognised in the text
// only with parse_special, which is for trusted text; otherwise they are ordinary characters.
// Added tokens that are not special are always recognised, as Hugging Face does.
// Time is linear in n but for the logarithm of the longest piece; the stack is constant.
void tokenizer_encode_to(const Tokenizer *tok, const char *text, size_t n, bool parse_special,
                         TokenIds *out);

// The same into an array of *n_ids ids owned by the caller (mem_free).
void tokenizer_encode(const Tokenizer *tok, const char *text, size_t n, bool parse_special,
                      int **ids, size_t *n_ids);

// For text that is encoded in parts without special tokens. tokenizer_cut finds a place in
// text[0..n) where a part may end, at or below `target` bytes, although text follows; 0 when only
// more text can tell. tokenizer_encode_part appends the ids of text[0..end), where bytes end..n are
// the text after the part as far as it was seen when the cut was found. The parts give exactly the
// ids of the whole.
size_t tokenizer_cut(const Tokenizer *tok, const char *text, size_t n, size_t target);
void tokenizer_encode_part(const Tokenizer *tok, const char *text, size_t n, size_t end,
                           TokenIds *out);

// The bytes of a token, *len of them, not NUL-terminated, valid as long as the tokenizer. An id
// without a token (there may be gaps) or outside 0..n_ids-1 has length 0. Never NULL.
const char *tokenizer_bytes(const Tokenizer *tok, int id, size_t *len);

// The largest id plus one: the vocabulary size of a model for this tokenizer.
int tokenizer_n_ids(const Tokenizer *tok);
// The token that ends a document (<|endoftext|>, <|end_of_text|>, </s> or <|bos|>, the first of
// these that exists), or -1.
int tokenizer_eot(const Tokenizer *tok);
// The id of a special or added token by its text, or -1.
int tokenizer_special(const Tokenizer *tok, const char *text);
bool tokenizer_is_special(const Tokenizer *tok, int id);
SplitKind tokenizer_split(const Tokenizer *tok);

// 64 bits over everything that decides ids and text: token bytes, merges, splitting, special
// tokens. Equal for the same tokenizer from any file format, on any machine.
uint64_t tokenizer_hash(const Tokenizer *tok);

#ifdef __cplusplus
}
#endif
