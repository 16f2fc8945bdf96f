// split.h - cuts text into the pieces inside which byte pairs may merge, as the regular expressions
// of GPT-2 and GPT-4 do, without a regular-expression engine: one pass, constant stack.
// Bytes that are not UTF-8 count as symbols, one by one, and are kept as they are.
#pragma once

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum SplitKind {
    SPLIT_GPT2,          // GPT-2, r50k, p50k
    SPLIT_GPT4,          // GPT-4, cl100k, Llama 3: numbers in threes
    SPLIT_GPT4_DIGITS2,  // the same with numbers in twos
    SPLIT_GPT4_DIGITS1,  // the same with single digits
    SPLIT_KINDS
} SplitKind;

// A run of one class longer than this is cut here, so that time and memory stay linear in the text.
// The reference implementations have no such cut.
enum { SPLIT_LONGEST_RUN = 1 << 20 };

// The end of the piece of text[0..n) that starts at pos < n, where pos is itself a piece's start.
// *hit_end (may be NULL) is set when text after n could have moved that end; it is never cleared.
size_t split_next(SplitKind kind, const char *text, size_t n, size_t pos, bool *hit_end);

// "gpt2", "gpt4", "gpt4-digits2", "gpt4-digits1".
const char *split_name(SplitKind kind);
bool split_from_name(const char *name, SplitKind *kind);

// The regular expression in the notation of tokenizer.json. Reading accepts spellings that cut
// every text the same way, and no others.
const char *split_regex(SplitKind kind);
bool split_from_regex(const char *regex, SplitKind *kind);

#ifdef __cplusplus
}
#endif
