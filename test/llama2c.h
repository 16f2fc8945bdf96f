// llama2c.h - a small importer for llama2.c checkpoints (version 0): a check that our RMSNorm,
// RoPE, SwiGLU and grouped queries are the world's. Tests only.
#pragma once

#include "gpt/model.h"

// The model in the file, ready for inference, or NULL with a sentence. Free with model_free.
Model *llama2c_load(const char *path, const Ops *ops, Error *err);
