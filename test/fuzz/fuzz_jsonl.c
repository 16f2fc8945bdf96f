// fuzz_jsonl.c - arbitrary bytes as one line of JSON.
#include "data/jsonl.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    Buf out = {0};
    Error err = {{0}};
    bool ok = jsonl_text((const char *)data, size, "text", &out, &err);
    // A text is never longer than its spelling, and a failure has a sentence.
    if (out.n > size || (!ok && !*err.text)) abort();
    buf_free(&out);
    return 0;
}
