// prepare_scene.h - a folder with inputs, one run of prepare over them, and its result as text.
#pragma once

#include "data/prepare.h"
#include "gpt/tokenizer.h"
#include "test/test.h"

typedef struct PrepareScene {
    char *dir, *in, *out, *tokenizer;  // folder, dir/in, dir/out, a small tokenizer.json
    PrepareOptions o;                  // input dir/in, that tokenizer, output dir/out, one thread
    PrepareInfo info;
    const char *inputs[1];
} PrepareScene;

void scene_start(PrepareScene *s);
void scene_end(PrepareScene *s);
// Writes dir/in/name, making folders on the way.
void scene_file(const PrepareScene *s, const char *name, const char *bytes, size_t n);
void scene_text(const PrepareScene *s, const char *name, const char *text);
void scene_run(TestCtx *t, PrepareScene *s);
// The run fails with these words and leaves nothing in dir/out.
void scene_refused(TestCtx *t, PrepareScene *s, const char *words);

// All tokens of dir/out/<split>_*.bin as text, "|" for each <|endoftext|>; the caller frees the
// Buf.
Buf scene_tokens(TestCtx *t, const PrepareScene *s, const char *split);
void scene_check(TestCtx *t, const PrepareScene *s, const char *split, const char *want);
// The names in dir/out, sorted, with a space behind each.
char *scene_names(const PrepareScene *s);
