// load.h - a trained model for inference, from a run directory, a checkpoint directory or a
// model.safetensors file.
#pragma once

#include "gpt/model.h"
#include "gpt/run.h"
#include "gpt/tokenizer.h"

typedef struct Loaded {
    Model *m;
    Tokenizer *tok;    // NULL when there is no tokenizer.json beside the model
    char *model_path;  // the file that was read
} Loaded;

// path: a run directory (its newest good checkpoint), a step directory, or a .safetensors file.
// overrides[0..n) are "section.field=value" for settings that do not change the model.
// train.threads is that of the overrides, else all. The device is a name for program_ops. The model
// is ready for model_extend; activations are the caller's.
bool loaded_open(Loaded *l, const char *path, const char *const *overrides, int n, const Program *p,
                 const char *device, Error *err);
void loaded_close(Loaded *l);

// Only the config that a model was trained with.
bool loaded_config(Config *c, const char *path, Error *err);
