// optim.h - AdamW and Muon over a model's parameters. Which one a tensor gets follows from its kind
// and the config (optim.embed, head, matrix, vector); state arenas use the parameter table's order.
#pragma once

#include "gpt/model.h"

typedef struct Optimizer Optimizer;

// Whether the device can do what optim.master asks for; false with a sentence.
bool optim_check(const Config *c, const Ops *ops, Error *err);
// State at zero; holds fp32 masters too where the device's parameters are not fp32 and optim.master
// wants them. The model must outlive it. Free with optim_free.
Optimizer *optim_create(Model *m);
void optim_free(Optimizer *o);
size_t optim_bytes(const Config *c, const Ops *ops);

// Gradient norm, clipping, the update of every tensor, then model_prepare. step counts from 0 and
// is the number of updates done before this one (AdamW's bias correction uses step + 1). Nothing is
// written when the loss or the gradient is not finite; *out (host) says so.
void optim_step(Optimizer *o, int64_t step, double lr_factor, StepState *out);

// State tensors for checkpoints: "adamw.m.wte", "adamw.v.wte", "muon.momentum.h.0.attn.wq", and
// "master.*" on devices with masters. get and set move host fp32 in logical order.
int optim_n_tensors(const Optimizer *o);
const char *optim_tensor_name(const Optimizer *o, int i);
const TensorSpec *optim_tensor_spec(const Optimizer *o, int i);
void optim_get_tensor(const Optimizer *o, int i, float *logical);
void optim_set_tensor(Optimizer *o, int i, const float *logical);
// After the model's parameters were set from fp32 values: masters take them over. values is the
// tensor's logical fp32 data.
void optim_set_master(Optimizer *o, int tensor, const float *logical);
// The tensor in fp32: from the master where there is one, else from the model.
void optim_get_master(const Optimizer *o, int tensor, float *logical);
